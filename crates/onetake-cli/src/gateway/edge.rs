//! The edge: the first step of a request. It refuses requests that two servers could read
//! differently, corrects forwarding headers, and finds the plan.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{CONNECTION, COOKIE, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, Version};
use http_body_util::{Either, Full};
use tower_service::Service;
use tracing::level_filters::LevelFilter;

use onetake_core::{Clock, Reference};
use onetake_http::body::ExactEnd;
use onetake_http::grpc;
use onetake_http::problem::IDEMPOTENCY_REFERENCE;
use onetake_http::routes::has_dot_segment;
use onetake_http::{
    ATTEMPT_HEADERS, AmbiguousRequest, ClientIp, Code, Onetake, Problem, ProblemFormat,
    ResponseBody, method_word,
};

use super::client_body::ClientBody;
use super::client_connection::Answer;
use super::client_ip::client_of;
use super::cors::CorsRequest;
use super::early_hints::Moment;
use super::forwarding::{Hop, X_REAL_IP, host_of, remove_claims};
use super::in_flight::{Connection, Held};
use super::method_override;
use super::plan::{Plan, Plans, Refused};
use super::proxy::{self, Proxy};
use super::request_heads::check_size;
use super::response_memory::{Exhausted, ResponseMemory};
use super::trailer_names::check_trailer_names;
use crate::traces::Parent;

/// Prefix of the forwarding headers.
pub(super) const X_FORWARDED: &str = "x-forwarded-";

/// The header of replays.
const IDEMPOTENT_REPLAYED: &str = "idempotent-replayed";

/// Headers that upstreams trust. Only the gateway may set them.
pub(super) const BELIEVED: [HeaderName; 3] = ATTEMPT_HEADERS;

/// The body of a response: that of the layer, or one of the edge itself.
pub(super) type AnyBody = Held<Either<ResponseBody<proxy::Body>, Full<Bytes>>>;

/// A connection's permit from the limit on connections, and the share of its requests in other
/// limits. A WebSocket tunnel keeps it after the request.
pub(super) type ConnectionPermit = Arc<Connection>;

/// The whole gateway as one service.
pub(super) struct Edge {
    inner: Onetake<Proxy<ClientBody>>,
    plans: Arc<Plans>,
    responses: Arc<ResponseMemory>,
    clock: Arc<dyn Clock>,
}

impl Edge {
    pub(super) fn new(
        inner: Onetake<Proxy<ClientBody>>,
        plans: Arc<Plans>,
        responses: Arc<ResponseMemory>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { inner, plans, responses, clock }
    }
}

impl Answer for Edge {
    type Body = AnyBody;

    fn answers(&self) -> ProblemFormat {
        self.plans.answers
    }

    fn answer(
        self: &Arc<Self>,
        peer: SocketAddr,
        place: ConnectionPermit,
        request: Request<ClientBody>,
    ) -> BoxFuture<'static, Response<AnyBody>> {
        let edge = Arc::clone(self);
        Box::pin(async move {
            let Self { inner, plans, responses, clock } = &*edge;
            let from = is_logged().then(|| clock.monotonic());
            let (mut parts, body) = request.into_parts();
            let method = parts.method.clone();
            let cors = plans.cors.as_ref().map(|cors| (cors, CorsRequest::of(&parts)));
            if let Some((cors, request)) = &cors
                && let Some(wanted) = request.preflight()
                && plans.is_responsible(wanted, parts.uri.path())
            {
                return match admit(plans, peer, &place, &mut parts) {
                    Err(problem) if is_ambiguous(&problem) => refuse(plans, problem, &parts),
                    _ => cors.permit(request).map(whole),
                };
            }
            let is_responsible = cors.is_some() && plans.is_responsible(&method, parts.uri.path());
            // A refusal by the limit is written like any other, so that pages can read it.
            let admitted = match place.admit(&mut parts).await {
                Ok(permit) => admit(plans, peer, &place, &mut parts).map(|routed| (permit, routed)),
                // An ambiguous request is the last one of its connection, also while there is no
                // permit for it.
                Err(full) => match admit(plans, peer, &place, &mut parts) {
                    Err(problem) if is_ambiguous(&problem) => Err(problem),
                    _ => Err(full),
                },
            };
            let mut response = match admitted {
                Err(problem) => refuse(plans, problem, &parts),
                Ok((permit, routed)) => {
                    let plan = Arc::clone(&routed.plan);
                    parts.extensions.insert(place.bodies());
                    parts.extensions.insert(routed);
                    if parts.version == Version::HTTP_2 {
                        parts.extensions.insert(ExactEnd);
                    }
                    let parent = Parent::take(&mut parts.headers);
                    let request = Request::from_parts(parts, body);
                    let mut inner = inner.clone();
                    let answered = parent.around(|| inner.call(request)).await;
                    let response = answered.unwrap_or_else(|never| match never {});
                    if let Some(from) = from {
                        log(&method, &plan, &response, clock.monotonic() - from);
                    }
                    match responses.take(&place, response.body().bytes_in_memory()) {
                        Ok(share) => response.map(|body| {
                            Held::new(Either::Left(body), [Some(permit), None]).with_memory(share)
                        }),
                        Err(exhausted) => unread(exhausted, &plan, &response),
                    }
                }
            };
            let is_problem = Code::of(&response).is_some();
            if let Some((cors, request)) = cors
                && (is_responsible || is_problem)
            {
                cors.write(&request, response.headers_mut());
            }
            response
        })
    }
}

/// True for the problem of a request that two servers could read differently.
fn is_ambiguous(problem: &Problem) -> bool {
    problem.code() == Code::RequestRefused
}

/// The answer to a request that is not admitted. An ambiguous one is the last one of its connection:
/// another server could read the bytes behind it as a part of it.
fn refuse(plans: &Plans, problem: Problem, parts: &Parts) -> Response<AnyBody> {
    let is_last = is_ambiguous(&problem) && parts.version < Version::HTTP_2;
    let mut response = plans.answers.tell(problem, None).map(whole);
    if is_last {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    match grpc::is_grpc(&parts.headers) {
        true => grpc::error_of(response, || whole(Bytes::new())),
        false => response,
    }
}

/// True if requests may be logged. The level of all subscribers together decides: `enabled!` would
/// leave its result behind in the filters of the layers, and the next span would be lost.
fn is_logged() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}

/// Logs one line per request. Of the client's input it holds only the method, if that is a standard
/// one.
pub(super) fn log<B>(
    method: &Method,
    plan: &Plan,
    response: &Response<B>,
    took: std::time::Duration,
) {
    let headers = response.headers();
    // On a request without a key, the upstream can set this header to anything.
    let reference = || {
        let text = headers.get(IDEMPOTENCY_REFERENCE).and_then(|value| value.to_str().ok());
        text.filter(|text| text.parse::<Reference>().is_ok())
    };
    tracing::debug!(
        target: "onetake::access",
        method = method_word(method),
        route = plan.label,
        status = response.status().as_u16(),
        reference = reference(),
        replayed = headers.contains_key(IDEMPOTENT_REPLAYED),
        micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
    );
}

/// The answer in place of a response that clients who do not read leave no memory for.
fn unread<B>(exhausted: Exhausted, plan: &Plan, response: &Response<B>) -> Response<AnyBody> {
    let headers = response.headers();
    let reference = headers.get(IDEMPOTENCY_REFERENCE).and_then(|value| value.to_str().ok());
    let reference = reference.and_then(|text| text.parse().ok());
    let problem = exhausted.problem(headers.contains_key(IDEMPOTENT_REPLAYED));
    let problem = plan.answers.tell(problem, reference).map(whole);
    match grpc::is_grpc(headers) {
        true => grpc::error_of(problem, || whole(Bytes::new())),
        false => problem,
    }
}

fn whole(body: Bytes) -> AnyBody {
    Held::new(Either::Right(Full::new(body)), [None, None])
}

/// An extension of a request that has a `Content-Length` beside a `Transfer-Encoding`. hyper removes
/// that length.
#[derive(Clone, Copy, Debug)]
pub(super) struct TwoLengths;

/// The plan of a request, in its extensions.
#[derive(Clone)]
pub(super) struct Routed {
    pub(super) plan: Arc<Plan>,
    /// The client's connection; `None` if Envoy forwards the request.
    pub(super) connection: Option<ConnectionPermit>,
    /// True if the request has no headers of its connection, such as `Connection` or `TE`.
    pub(super) is_plain: bool,
    /// The request among those of its connection, if its client can get early hints.
    pub(super) hinted: Option<Moment>,
}

/// Checks and prepares the head of a request.
fn admit(
    plans: &Plans,
    peer: SocketAddr,
    place: &ConnectionPermit,
    parts: &mut Parts,
) -> Result<Routed, Problem> {
    // One look at each name is cheaper than a search for each header that could be there.
    let is_plain = !parts.headers.keys().any(|name| is_special(plans, name));
    if !is_plain {
        connection(plans, parts)?;
    }
    let known = place.hop.get().filter(|hop| hop.is_of(parts));
    let new = match known {
        Some(_) => None,
        None => Some(Hop::new(peer.ip(), host_of(parts)?, plans.proto)?),
    };
    if !is_plain {
        transfer_encoding(parts)?;
    }
    cookies(&mut parts.headers);
    check_size(parts, plans.heads)?;
    if parts.method == Method::CONNECT || !parts.uri.path().starts_with('/') {
        return Err(refused("The target of the request is not a path."));
    }
    if has_dot_segment(parts.uri.path()) {
        return Err(Refused::Ambiguous(AmbiguousRequest::DotSegment).into());
    }
    let plan = Arc::clone(plans.admit(&parts.method, parts.uri.path())?);
    let trusted = plans.trusts(peer.ip());
    if !is_plain {
        method_override::check(plans, &plan, parts)?;
        remove_forged(plans, trusted, &mut parts.headers);
    }
    if plans.tells_addresses
        && let Some(client) = client_of(peer.ip(), &parts.headers, |address| plans.trusts(address))
    {
        parts.extensions.insert(ClientIp(client));
    }
    if let Some(hop) = known.or(new.as_ref()) {
        hop.write(&mut parts.headers, trusted);
    }
    if let Some(new) = new {
        let _has_one = place.hop.set(new);
    }
    let is_hinted = plans.early_hints && parts.version == Version::HTTP_11;
    let hinted = is_hinted.then(|| place.hints.advance());
    Ok(Routed { plan, connection: Some(Arc::clone(place)), is_plain, hinted })
}

/// True if the edge or the proxy treats this header in a way of its own. All other headers go to
/// the upstream as they are.
fn is_special(plans: &Plans, name: &HeaderName) -> bool {
    let text = name.as_str();
    let is_known = matches!(
        text,
        "connection"
            | "forwarded"
            | "http2-settings"
            | "idempotency-derived-key"
            | "idempotency-fence"
            | "idempotency-reference"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "x-http-method"
            | "x-http-method-override"
            | "x-method-override"
            | "x-real-ip"
    );
    // The name of a lookalike has an underscore, or a protected name has one.
    is_known
        || text.starts_with(X_FORWARDED)
        || text.contains('_')
        || plans.tenant_headers.iter().any(|known| is_alike(known.as_str(), text))
}

/// Removes headers that only the gateway or a trusted proxy may set.
fn remove_forged(plans: &Plans, is_trusted: bool, headers: &mut HeaderMap) {
    for name in BELIEVED {
        headers.remove(name);
    }
    lookalikes(plans, headers);
    check_trailer_names(plans, headers);
    if !is_trusted {
        for name in &plans.tenant_headers {
            headers.remove(name);
        }
        remove_claims(headers);
    }
}

/// Removes headers that differ from a protected one only by `_` for `-`. Many servers read
/// `X_Account` as `X-Account`, so a client must not set either.
pub(super) fn lookalikes(plans: &Plans, headers: &mut HeaderMap) {
    let is_one = |name: &&HeaderName| {
        let text = name.as_str();
        let is_alike = |known: &str| known != text && is_alike(known, text);
        let beginning = text.get(..X_FORWARDED.len()).unwrap_or_default();
        BELIEVED.iter().any(|known| is_alike(known.as_str()))
            || plans.tenant_headers.iter().any(|known| is_alike(known.as_str()))
            || is_alike(X_REAL_IP.as_str())
            || (beginning != X_FORWARDED && self::is_alike(X_FORWARDED, beginning))
    };
    for name in headers.keys().filter(is_one).cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

/// True if two names are the same to a server that treats `_` and `-` as equal.
pub(super) fn is_alike(one: &str, other: &str) -> bool {
    let fold = |byte: u8| if byte == b'_' { b'-' } else { byte };
    one.len() == other.len() && one.bytes().map(fold).eq(other.bytes().map(fold))
}

pub(super) fn refused(what: &str) -> Problem {
    Problem::new(Code::RequestRefused, format!("{what} Nothing was forwarded."))
}

/// Removes headers that belong to the connection, and those that `Connection` names. It is an error
/// if `Connection` names a header of the request itself.
fn connection(plans: &Plans, parts: &mut Parts) -> Result<(), Problem> {
    let headers = &mut parts.headers;
    headers.remove("http2-settings");
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.to_str().unwrap_or_default().split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let mut kept = Vec::new();
    for name in named {
        let text = name.as_str();
        if ["close", "keep-alive", "upgrade", "te"].contains(&text) {
            kept.push(text.to_owned());
            continue;
        }
        let about = ["host", "authorization", "cookie", "x-api-key", "forwarded", "expect"];
        let families = ["content-", "transfer-", "idempotency-", "x-idempotency-", "x-forwarded-"];
        if about.contains(&text)
            || families.iter().any(|family| text.starts_with(family))
            || plans.tenant_headers.contains(&name)
            || plans.key_headers.contains(&name)
        {
            return Err(refused(
                "The Connection header names an end-to-end header, such as Host or Authorization.",
            ));
        }
        headers.remove(name);
    }
    headers.remove(CONNECTION);
    if let Ok(kept) = HeaderValue::from_str(&kept.join(", "))
        && !kept.is_empty()
    {
        headers.insert(CONNECTION, kept);
    }
    Ok(())
}

/// Joins cookie lines: HTTP/2 may send several, HTTP/1 only one.
fn cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Allows `chunked` only, only in HTTP/1.1, and not beside a `Content-Length`.
fn transfer_encoding(parts: &Parts) -> Result<(), Problem> {
    let mut values = parts.headers.get_all(TRANSFER_ENCODING).iter();
    let Some(value) = values.next() else {
        return Ok(());
    };
    let chunked = value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    if values.next().is_some() || !chunked || parts.version != Version::HTTP_11 {
        return Err(refused("The Transfer-Encoding must be chunked, and only in HTTP/1.1."));
    }
    if parts.extensions.get::<TwoLengths>().is_some() {
        return Err(refused("The request has a Content-Length beside a Transfer-Encoding."));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::in_flight::tests::connection_of_tests;
    use super::super::plan::tests::plans;
    use super::*;

    const FILE: &str = "[gateway]\nupstream = \"http://a\"\ntrusted_proxies = [\"10.0.0.0/8\"]\n\
        [[route]]\nmatch = \"POST /charges\"\ntenant = { header = \"X-Account\" }\n";

    fn admit_from(file: &str, peer: &str, parts: &mut Parts) -> Result<Routed, Problem> {
        let peer = SocketAddr::new(peer.parse().unwrap(), 1);
        admit(&plans(file), peer, &connection_of_tests(), parts)
    }

    /// The headers that go on to the upstream, for a request from this peer.
    fn seen(peer: &str, headers: &[(&str, &str)]) -> http::HeaderMap {
        let mut request = Request::post("/charges").header("host", "h");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut parts = request.body(()).unwrap().into_parts().0;
        assert!(admit_from(FILE, peer, &mut parts).is_ok());
        parts.headers
    }

    #[test]
    fn only_trusted_proxies_are_believed_about_tenants_and_forwarding() {
        let claims = [
            ("x-account", "victim"),
            ("x-forwarded-for", "1.2.3.4"),
            ("forwarded", "for=1.2.3.4"),
            ("x-forwarded-host", "other"),
            ("x-real-ip", "1.2.3.4"),
            ("x-forwarded-prefix", "/admin"),
            ("X-Forwarded-Client-Cert", "Subject=\"CN=victim\""),
            ("x-forwarded-user", "victim"),
            ("x-forwarded-user", "other"),
        ];
        let others = ["x-forwarded-prefix", "x-forwarded-client-cert", "x-forwarded-user"];
        for stranger in ["203.0.113.9", "127.0.0.1", "::1"] {
            let headers = seen(stranger, &claims);
            assert!(!headers.contains_key("x-account"), "{stranger} named a tenant");
            assert!(!headers.contains_key("x-real-ip"));
            assert!(others.iter().all(|name| !headers.contains_key(*name)), "{headers:?}");
            assert_eq!(headers["x-forwarded-for"], stranger);
            assert_eq!(headers["x-forwarded-host"], "h");
            assert!(!headers["forwarded"].to_str().unwrap().contains("1.2.3.4"));
        }
        for proxy in ["10.1.2.3", "::ffff:10.1.2.3"] {
            let headers = seen(proxy, &claims);
            assert_eq!(headers["x-account"], "victim");
            assert_eq!(headers["x-forwarded-for"], "1.2.3.4, 10.1.2.3");
            assert_eq!(headers["x-forwarded-host"], "other");
            assert!(others.iter().all(|name| headers.contains_key(*name)), "{headers:?}");
            assert_eq!(headers["forwarded"], "for=1.2.3.4, for=10.1.2.3;host=\"h\";proto=http");
        }
    }

    /// A connection keeps the headers of its first host. Another host gets its own.
    #[test]
    fn each_request_of_a_connection_has_its_own_host() {
        let (plans, place) = (plans(FILE), connection_of_tests());
        let forwarded = |host: &str, target: &str, peer: &str, version: Version| {
            let mut request = Request::post(target).version(version);
            if !host.is_empty() {
                request = request.header("host", host);
            }
            let mut parts = request.body(()).unwrap().into_parts().0;
            let peer = SocketAddr::new(peer.parse().unwrap(), 1);
            admit(&plans, peer, &place, &mut parts).map_err(|problem| problem.code())?;
            let told = |name: &str| parts.headers[name].to_str().unwrap().to_owned();
            assert_eq!(told("host"), told("x-forwarded-host"));
            Ok([told("host"), told("forwarded"), told("x-forwarded-port")])
        };
        let of = |host: &str, port: &str| {
            let forwarded = format!("for=203.0.113.9;host=\"{host}\";proto=http");
            Ok::<_, Code>([host.to_owned(), forwarded, port.to_owned()])
        };
        let (peer, http1, http2) = ("203.0.113.9", Version::HTTP_11, Version::HTTP_2);
        for _ in 0..2 {
            assert_eq!(forwarded("a:81", "/charges", peer, http1), of("a:81", "81"));
            assert_eq!(forwarded("b", "/charges", peer, http1), of("b", "80"));
            assert_eq!(forwarded("", "http://a:81/charges", peer, http2), of("a:81", "81"));
            assert_eq!(forwarded("a:81", "http://a:81/charges", peer, http2), of("a:81", "81"));
            for (host, target) in
                [("", "/charges"), ("", "http://a:81/charges"), ("a:81", "http://b/charges")]
            {
                let refused = forwarded(host, target, peer, http1);
                assert_eq!(refused, Err(Code::RequestRefused), "{host} {target}");
            }
        }
    }

    #[test]
    fn addresses_are_told_where_they_name_tenants() {
        let told = |file: &str, peer: &str| {
            let request = Request::post("/charges").header("host", "h");
            let request = request.header("x-forwarded-for", "192.0.2.1");
            let mut parts = request.body(()).unwrap().into_parts().0;
            assert!(admit_from(file, peer, &mut parts).is_ok());
            parts.extensions.get::<ClientIp>().map(|client| client.0.to_string())
        };
        let file = FILE.replace("{ header = \"X-Account\" }", "\"client-ip\"");
        assert_eq!(told(&file, "203.0.113.9").as_deref(), Some("203.0.113.9"));
        assert_eq!(told(&file, "10.1.2.3").as_deref(), Some("192.0.2.1"));
        assert_eq!(told(FILE, "10.1.2.3"), None, "nobody needs it");
    }

    #[test]
    fn nobody_can_forge_what_the_upstream_believes() {
        let forged = [
            ("idempotency-fence", "9"),
            ("idempotency-derived-key", "k"),
            ("Idempotency_Fence", "9"),
            ("idempotency_derived-key", "k"),
            ("X_Account", "victim"),
            ("x_forwarded_for", "1.2.3.4"),
            ("x-forwarded_host", "other"),
            ("x-real_ip", "1.2.3.4"),
        ];
        for peer in ["203.0.113.9", "10.1.2.3"] {
            let mut headers = seen(peer, &forged);
            for ours in [
                "host",
                "x-forwarded-for",
                "x-forwarded-host",
                "x-forwarded-port",
                "x-forwarded-proto",
                "forwarded",
            ] {
                headers.remove(ours);
            }
            assert!(headers.is_empty(), "{headers:?}");
        }
        assert!(seen("203.0.113.9", &[("my_header", "1")]).contains_key("my_header"));
        // The same holds in the other direction: here the route names the spelling with `_`.
        let file = FILE.replace("X-Account", "X_Account");
        let request = Request::post("/charges").header("host", "h");
        let request = request.header("x-account", "victim").header("x_account", "me");
        let mut parts = request.body(()).unwrap().into_parts().0;
        assert!(admit_from(&file, "10.1.2.3", &mut parts).is_ok());
        assert_eq!(parts.headers.get("x-account"), None);
        assert_eq!(parts.headers["x_account"], "me");
    }

    /// The label of the plan of a request, or the code of its refusal.
    fn planned(file: &str, method: &str, path: &str) -> Result<String, Code> {
        let request = Request::builder().method(method).uri(path).header("host", "h");
        let mut parts = request.body(()).unwrap().into_parts().0;
        let routed = admit_from(file, "10.1.2.3", &mut parts);
        routed.map(|routed| routed.plan.label.clone()).map_err(|problem| problem.code())
    }

    #[test]
    fn no_spelling_of_a_path_gets_around_its_route() {
        let found = |path: &str| planned(FILE, "POST", path);
        for same in [
            "/charges",
            "/%63harges",
            "/char%67e%73",
            "//charges",
            "/charges/",
            "/charges//",
            "///charges",
            "/charges?a=%2f",
        ] {
            assert_eq!(found(same), Ok("POST /charges".to_owned()), "{same}");
        }
        for dots in [
            "/./charges",
            "/x/../charges",
            "/x/%2e%2E/charges",
            "/charges/.",
            "/x/..;/charges",
            "/.;/charges",
            "/x/..%3b/charges",
            "/x/%2e.%3Ba=b/charges",
        ] {
            assert_eq!(found(dots), Err(Code::RequestRefused), "{dots}");
            assert_eq!(planned(FILE, "GET", dots), Err(Code::RequestRefused), "GET {dots}");
        }
        for refused in [
            "/v1%2fcharges",
            "/%2Fcharges",
            "/charges%5c",
            "/charges%00",
            "/charges%0a",
            "/charges%7f",
            "/charges%",
            "/charges;a=b",
        ] {
            assert_eq!(found(refused), Err(Code::RequestRefused), "{refused}");
        }
        for other in ["/charges/.../a..b", "/Charges", "/charges/1", "/other;a=b", "/...;/charges"]
        {
            assert_eq!(found(other), Ok("-".to_owned()), "{other}");
        }
        for method in ["post", "Post", "get"] {
            assert_eq!(planned(FILE, method, "/charges"), Err(Code::RequestRefused), "{method}");
        }
        // No route has these methods, so there is none to get around.
        for path in ["/a%2fb", "/a%0ab", "/100%"] {
            assert_eq!(planned(FILE, "GET", path), Ok("-".to_owned()), "{path}");
        }
    }

    #[test]
    fn a_route_says_whether_letter_case_and_the_last_slash_count() {
        let file = format!("{FILE}path_case = \"ignore\"\ntrailing_slash = \"exact\"\n");
        for (path, label) in
            [("/charges", "POST /charges"), ("/CHARGES", "POST /charges"), ("/charges/", "-")]
        {
            assert_eq!(planned(&file, "POST", path), Ok(label.to_owned()), "{path}");
        }
    }

    #[test]
    fn a_path_of_two_routes_is_refused() {
        let file = "[gateway]\nupstream = \"http://a\"\n\
            [[route]]\nmatch = \"POST /a/b\"\n\
            [[route]]\nmatch = \"POST /a/{*rest}\"\nkey = { required = true }\n";
        assert_eq!(planned(file, "POST", "/a/b"), Ok("POST /a/b".to_owned()));
        assert_eq!(planned(file, "POST", "/a/c//d"), Ok("POST /a/{*rest}".to_owned()));
        // A server that keeps empty segments runs the handler of the second route.
        assert_eq!(planned(file, "POST", "/a//b"), Err(Code::RequestRefused));
        // A server that ignores parameters runs the handler of the first.
        assert_eq!(planned(file, "POST", "/a/b;c"), Err(Code::RequestRefused));
    }

    #[test]
    fn requests_without_a_route_are_refused_if_the_file_says_so() {
        // The secret that signs issued keys is in the store, if the file has none.
        let issued = "[[route]]\nmatch = \"POST /issued\"\nkey = { from = \"issued\" }\n";
        let file = FILE.replacen("[[route]]", "unmatched = \"refuse\"\n[[route]]", 1);
        for (method, path, expected) in [
            ("POST", "/charges", Ok("POST /charges")),
            ("POST", "/Charges", Err(Code::NoRoute)),
            ("PUT", "/charges", Err(Code::NoRoute)),
            ("PURGE", "/charges", Err(Code::NoRoute)),
            ("POST", "/idempotency-tokens", Err(Code::NoRoute)),
            ("GET", "/anything", Ok("-")),
            ("OPTIONS", "/charges", Ok("-")),
        ] {
            let expected = expected.map(str::to_owned);
            assert_eq!(planned(&file, method, path), expected, "{method} {path}");
            assert!(planned(FILE, method, path).is_ok(), "{method} {path}");
        }
        let file = format!("{file}{issued}");
        assert_eq!(planned(&file, "POST", "/idempotency-tokens"), Ok("-".to_owned()));
    }

    #[test]
    fn cookies_become_one_line() {
        let headers = seen("10.0.0.1", &[("cookie", "a=1"), ("cookie", "b=2")]);
        assert_eq!(headers.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"]);
    }
}
