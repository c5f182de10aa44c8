//! Tests: the tenant that each kind of request belongs to.

use super::*;
use http::{HeaderValue, Request};
use onetake_core::ManualClock;

fn parts(headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::new(()).into_parts().0;
    for (name, value) in headers {
        let name: HeaderName = name.parse().unwrap();
        request.headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    request
}

fn now(tenant: &Tenant, parts: &Parts) -> Result<Caller, Problem> {
    tenant.resolve_now(parts, &ManualClock::default()).unwrap()
}

fn told(headers: &[(&str, &str)]) -> Result<Vec<u8>, Code> {
    let caller = now(&Tenant::Credential, &parts(headers));
    caller.map(|caller| caller.tenant).map_err(|problem| problem.code())
}

#[test]
fn credentials_name_their_owner() {
    let bearer = told(&[("authorization", "Bearer abc")]).unwrap();
    assert_eq!(told(&[("authorization", "bearer   abc ")]).unwrap(), bearer);
    assert_ne!(told(&[("authorization", "Bearer abd")]).unwrap(), bearer);
    assert_ne!(told(&[("authorization", "Token abc")]).unwrap(), bearer);
    assert_ne!(told(&[("x-api-key", "abc")]).unwrap(), bearer);
    // alice:one and alice:two
    let alice = told(&[("authorization", "Basic YWxpY2U6b25l")]).unwrap();
    assert_eq!(told(&[("authorization", "Basic YWxpY2U6dHdv")]).unwrap(), alice);
}

#[test]
fn credentials_that_change_are_refused() {
    for value in [
        "AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu/s3/aws4_request, Signature=ab",
        "Digest username=\"u\", nonce=\"n\"",
        "OAuth oauth_consumer_key=\"k\", oauth_nonce=\"n\"",
        "HMAC-SHA256 abc",
        "AWS AKIA:signature",
        "EG1-HMAC-SHA256 client_token=x;signature=y",
        "SharedKey account:signature",
        "TC3-HMAC-SHA256 Credential=x, Signature=y",
        "Something-New abc",
    ] {
        assert_eq!(told(&[("authorization", value)]), Err(Code::TenantUnstable), "{value}");
    }
}

#[test]
fn two_credentials_are_both_counted() {
    let both = |key| told(&[("authorization", "Bearer shared"), ("x-api-key", key)]).unwrap();
    assert_ne!(both("alice"), both("bob"));
    assert_ne!(both("alice"), told(&[("authorization", "Bearer shared")]).unwrap());
    assert_ne!(both("alice"), told(&[("x-api-key", "alice")]).unwrap());
}

#[test]
fn a_password_is_a_proof_and_not_a_tenant() {
    let caller = |value| now(&Tenant::Credential, &parts(&[("authorization", value)])).ok();
    // alice:one and alice:two
    let (one, two) = (caller("Basic YWxpY2U6b25l"), caller("Basic YWxpY2U6dHdv"));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert!(one.tenant == two.tenant && one.proof != two.proof);
}

#[test]
fn cookies_are_somebody_and_nobody_knows_who() {
    let cookies = parts(&[("cookie", "session=1")]);
    assert!(now(&Tenant::CredentialOrPublic, &cookies).is_err());
    assert!(now(&Tenant::Public, &cookies).is_ok());
    let both = parts(&[("cookie", "session=1"), ("authorization", "Bearer a")]);
    assert!(now(&Tenant::CredentialOrPublic, &both).is_ok());
}

#[test]
fn nobody_is_refused() {
    let none = Err(Code::TenantUnresolved);
    assert_eq!(told(&[]), none);
    assert_eq!(told(&[("authorization", "Bearer")]), none);
    assert_eq!(told(&[("authorization", "Basic !!!")]), none);
    assert_eq!(told(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]), none);
    assert!(now(&Tenant::CredentialOrPublic, &parts(&[])).is_ok());
    let account = Tenant::Header(HeaderName::from_static("x-account"));
    assert!(now(&account, &parts(&[])).is_err());
    assert!(now(&account, &parts(&[("x-account", "a"), ("x-account", "b")])).is_err());
    assert!(now(&account, &parts(&[("x-account", "a")])).is_ok());
}

#[test]
fn kinds_never_meet() {
    let public = now(&Tenant::Public, &parts(&[])).unwrap().tenant;
    let header = Tenant::Header(HeaderName::from_static("x-account"));
    let account = now(&header, &parts(&[("x-account", "public")])).unwrap().tenant;
    let bearer = told(&[("authorization", "Bearer public")]).unwrap();
    let forged = told(&[("authorization", "header public")]);
    assert_eq!(forged, Err(Code::TenantUnstable), "a scheme is not a kind of tenant");
    assert!(public != account && account != bearer && bearer != public);
}

#[test]
fn an_address_is_one_address_however_it_came_in() {
    let from = |address: &str| {
        let mut parts = parts(&[("x-forwarded-for", "192.0.2.1"), ("x-real-ip", "192.0.2.1")]);
        parts.extensions.insert(ClientIp(address.parse().unwrap()));
        now(&Tenant::ClientIp, &parts).unwrap().tenant
    };
    assert!(from("10.1.2.3") == from("::ffff:10.1.2.3"));
    assert!(from("2001:db8::1") == from("2001:DB8:0::1"));
    assert!(from("2001:db8::1") != from("2001:db8::2"), "the whole address counts");
    assert!(from("10.1.2.3") != from("10.1.2.4"));
    // Headers alone do not identify the client.
    let unknown = now(&Tenant::ClientIp, &parts(&[("x-forwarded-for", "10.1.2.3")]));
    assert_eq!(unknown.err().unwrap().code(), Code::TenantUnresolved);
}

/// A tenant that an operator names equals the tenant that the layer finds for that client.
#[tokio::test]
async fn a_tenant_by_name_is_the_one_of_the_request() {
    let of = async |tenant: Tenant, name: &str, value: &str| {
        let mut parts = Request::post("/").header(name, value).body(()).unwrap().into_parts().0;
        parts.extensions.insert(ClientIp("::ffff:192.0.2.7".parse().unwrap()));
        tenant.resolve(&parts, &onetake_core::SystemClock).await.unwrap().tenant
    };
    let named = |text: &str| tenant_named(text).unwrap();
    assert_eq!(named("public"), of(Tenant::Public, "x", "y").await);
    let bearer = of(Tenant::Credential, "authorization", "Bearer to:ken").await;
    assert_eq!(named("bearer:to:ken"), bearer);
    let basic = of(Tenant::Credential, "authorization", "Basic dXNlcjpwYXNz").await;
    assert_eq!(named("basic:user"), basic);
    assert_eq!(named("x-api-key:k1"), of(Tenant::Credential, "x-api-key", "k1").await);
    let account = Tenant::Header(http::HeaderName::from_static("x-account"));
    assert_eq!(named("header:acme"), of(account, "x-account", "acme").await);
    assert_eq!(named("client-ip:192.0.2.7"), of(Tenant::ClientIp, "x", "y").await);
    for wrong in ["", "nobody", "header:", "client-ip:x", "Bearer:x", "custom:x"] {
        assert_eq!(tenant_named(wrong), None, "{wrong}");
    }
}
