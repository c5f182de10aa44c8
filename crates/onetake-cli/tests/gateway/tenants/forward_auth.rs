//! `forward_auth`: asked before anything runs or is replayed; anything but a clear permission is a
//! refusal.

use futures_util::future::join_all;
use onetake_sim::servers::until;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{KEY, World};
use crate::common::forward_auth_service::{Auth, Says, assert_tells_nothing};

/// A gateway with `forward_auth` that caches an answer for this long.
async fn world(cache: &str) -> (Auth, World) {
    world_with(cache, "30s", "").await
}

async fn world_with(cache: &str, timeout: &str, lines: &str) -> (Auth, World) {
    let auth = Auth::start().await;
    let routes = format!(
        "[[route]]\nmatch = \"POST /pay/{{*rest}}\"\n{lines}\n\
         tenant = {{ forward_auth = {{ url = \"http://{}/verify?realm=a\", cache = \"{cache}\", timeout = \"{timeout}\" }} }}",
        auth.address
    );
    let world = World::start("", &routes).await;
    (auth, world)
}

#[tokio::test]
async fn a_principal_is_one_tenant_whatever_the_credential() {
    let (auth, world) = world("0s").await;
    auth.says("old", Says::Allow("alice"));
    auth.says("new", Says::Allow("alice"));
    auth.says("bobs", Says::Allow("bob"));
    let first = world.pay_as("old").await;
    assert_eq!((first.status(), world.runs()), (201, 1));
    let again = world.pay_as("new").await;
    assert!(again.is_replay() && again.body == first.body && world.runs() == 1);
    let other = world.pay_as("bobs").await;
    assert!(!other.is_replay() && world.runs() == 2, "bob's key is another one");
}

#[tokio::test]
async fn the_service_hears_who_asks_for_what_and_nothing_else() {
    let (auth, world) = world("0s").await;
    auth.says("t", Says::Allow("alice"));
    let call = world.client.post("/pay/charge?a=1").without("authorization").key(KEY);
    let call = call.header("authorization", "Bearer t").header("cookie", "s=1");
    let call = call.header("x-api-key", "k").header("x-forwarded-for", "192.0.2.1");
    let call = call.header("x-forwarded-method", "GET").header("x-forwarded-uri", "/free");
    let call = call.header("x-auth-request-user", "eve").body("card 4242");
    assert_eq!(call.send().await.unwrap().status(), 201);
    let (target, headers) = auth.asked().remove(0);
    assert_eq!(target, "/verify?realm=a");
    let said = |name: &str| headers.get_all(name).iter().collect::<Vec<_>>();
    assert_eq!(said("authorization"), ["Bearer t"]);
    assert_eq!(said("cookie"), ["s=1"]);
    assert_eq!(said("x-api-key"), ["k"]);
    assert_eq!(said("x-forwarded-method"), ["POST"]);
    assert_eq!(said("x-forwarded-uri"), ["/pay/charge?a=1"]);
    assert_eq!(said("x-forwarded-for"), ["192.0.2.1, 127.0.0.1"]);
    assert_eq!(said("x-forwarded-proto"), ["http"]);
    assert_eq!(said("x-forwarded-host").len(), 1);
    for name in ["idempotency-key", "content-length", "x-auth-request-user", "x-case"] {
        assert!(!headers.contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn requests_without_a_key_are_not_asked_about() {
    let (auth, world) = world("0s").await;
    let plain = world.client.post("/pay/charge").header("x-case", "plain");
    assert_eq!(plain.send().await.unwrap().status(), 201);
    assert!(auth.asked().is_empty());
}

#[tokio::test]
async fn refusals_are_passed_on_and_nothing_runs() {
    let (auth, world) = world("60s").await;
    let refused = world.pay_as("stranger").await;
    assert_eq!((refused.status(), refused.code().as_str()), (401, "tenant_unresolved"));
    let challenges: Vec<_> = refused.headers.get_all("www-authenticate").iter().collect();
    assert_eq!(challenges, ["Bearer realm=\"a\"", "Basic realm=\"b\""]);
    assert!(!refused.text().contains("stranger") && !refused.text().contains("go away"));
    auth.says("stranger", Says::Forbid);
    let forbidden = world.pay_as("stranger").await;
    assert_eq!((forbidden.status(), forbidden.code().as_str()), (403, "auth_refused"));
    assert_eq!(world.runs(), 0);
    assert_tells_nothing(&forbidden);
    // A refusal is not cached.
    auth.says("stranger", Says::Allow("alice"));
    assert_eq!(world.pay_as("stranger").await.status(), 201);
}

#[tokio::test]
async fn a_revoked_credential_gets_no_recording() {
    let (auth, world) = world("0s").await;
    auth.says("t", Says::Allow("alice"));
    assert_eq!(world.pay_as("t").await.status(), 201);
    for (says, status) in [(Says::Refuse, 401), (Says::Forbid, 403), (Says::Break, 503)] {
        auth.says("t", says);
        let retry = world.pay_as("t").await;
        assert_eq!(retry.status(), status, "{says:?}");
        assert_tells_nothing(&retry);
        // Another payload does not reveal either that the key is known.
        let other = world.pay(KEY).header("authorization", "Bearer t").body("other");
        let other = other.send().await.unwrap();
        assert_eq!(other.status(), status, "{says:?}");
        assert_tells_nothing(&other);
    }
    auth.says("t", Says::Allow("alice"));
    assert!(world.pay_as("t").await.is_replay(), "it is still there");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn what_is_not_clearly_allowed_is_refused() {
    let (auth, world) = world_with("60s", "2s", "").await;
    for says in [Says::Nothing, Says::Break, Says::Redirect, Says::Nameless, Says::TwoNames] {
        let asked = auth.asked().len();
        auth.says("t", says);
        let answer = world.pay_as("t").await;
        assert_eq!(
            (answer.status(), answer.code().as_str()),
            (503, "auth_unavailable"),
            "{says:?}"
        );
        assert!(["2", "3", "4"].contains(&answer.header("retry-after")));
        assert_tells_nothing(&answer);
        until("it is asked", async || auth.asked().len() > asked).await;
        assert_eq!(auth.asked().len(), asked + 1, "no redirect is followed: {says:?}");
    }
    assert_eq!(world.runs(), 0);
}

#[tokio::test]
async fn without_the_service_nothing_runs() {
    // No listener, a listener that hangs up, and one that speaks another protocol.
    for says in [None, Some(""), Some("220 mail.example ESMTP\r\n")] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        match says {
            None => drop(listener),
            Some(words) => drop(tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let _read = stream.read(&mut [0; 1024]).await;
                    let _written = stream.write_all(words.as_bytes()).await;
                }
            })),
        }
        let routes = format!("[defaults]\ntenant = {{ forward_auth = \"http://{address}\" }}");
        let world = World::start("", &routes).await;
        let answer = world.pay_as("t").await;
        assert_eq!(
            (answer.status(), answer.code().as_str()),
            (503, "auth_unavailable"),
            "{says:?}"
        );
        assert_eq!(world.runs(), 0);
    }
}

#[tokio::test]
async fn an_answer_counts_for_the_same_question_and_a_moment() {
    let (auth, world) = world("60s").await;
    auth.says("t", Says::Allow("alice"));
    for _ in 0..3 {
        assert_eq!(world.pay_as("t").await.status(), 201);
    }
    assert_eq!(auth.asked().len(), 1);
    // Another URI, address or credential is another question.
    let refund = world.client.post("/pay/refund").without("authorization").key(KEY);
    let refund = refund.header("authorization", "Bearer t").send().await.unwrap();
    assert_eq!((refund.status(), auth.asked().len()), (422, 2));
    let elsewhere = world.pay(KEY).header("authorization", "Bearer t");
    let elsewhere = elsewhere.header("x-forwarded-for", "192.0.2.1").send().await.unwrap();
    assert!(elsewhere.is_replay() && auth.asked().len() == 3);
    let with_cookie = world.pay(KEY).header("authorization", "Bearer t").header("cookie", "a=b");
    assert!(with_cookie.send().await.unwrap().is_replay() && auth.asked().len() == 4);

    let (auth, world) = self::world("50ms").await;
    auth.says("t", Says::Allow("alice"));
    assert_eq!(world.pay_as("t").await.status(), 201);
    auth.says("t", Says::Refuse);
    until("it is asked again", async || world.pay_as("t").await.status() == 401).await;
}

#[tokio::test]
async fn handles_and_issued_keys_are_asked_about_too() {
    let lines = "in_flight = \"async\"\nwait_timeout = \"0s\"";
    let (auth, world) = world_with("0s", "30s", lines).await;
    auth.says("t", Says::Allow("alice"));
    auth.says("bobs", Says::Allow("bob"));
    let call = world.client.post("/pay/gate").without("authorization").key(KEY);
    let accepted = call.header("authorization", "Bearer t").send().await.unwrap();
    assert_eq!(accepted.status(), 202, "{}", accepted.text());
    let location = accepted.header("location").to_owned();
    let look = async |token: &str| {
        let call = world.client.post(&location).without("authorization").method("GET").body("");
        call.header("authorization", &format!("Bearer {token}")).send().await.unwrap()
    };
    assert_eq!(look("t").await.status(), 200);
    assert_eq!(look("bobs").await.code(), "operation_not_found");
    world.upstream.open(KEY);
    until("there is an outcome", async || look("t").await.status() == 201).await;
    for (says, status) in [(Says::Refuse, 401), (Says::Forbid, 403), (Says::Break, 503)] {
        auth.says("t", says);
        let refused = look("t").await;
        assert_eq!(refused.status(), status);
        assert_tells_nothing(&refused);
    }

    let (auth, world) = world_with("0s", "30s", "key = { from = \"issued\" }").await;
    auth.says("t", Says::Allow("alice"));
    let issue = async || {
        let call = world.client.post("/idempotency-tokens").without("authorization");
        let call = call.header("authorization", "Bearer t");
        call.body("{\"method\":\"POST\",\"path\":\"/pay/charge\"}").send().await.unwrap()
    };
    let issued: Value = serde_json::from_slice(&issue().await.body).unwrap();
    let key = issued["key"].as_str().unwrap();
    auth.says("t", Says::Refuse);
    assert_eq!(issue().await.status(), 401);
    let pay = || world.pay(key).header("authorization", "Bearer t").send();
    assert_eq!((pay().await.unwrap().status(), world.runs()), (401, 0));
    auth.says("t", Says::Allow("alice"));
    assert_eq!((pay().await.unwrap().status(), world.runs()), (201, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_at_once_are_bounded() {
    let (auth, world) = world_with("0s", "30s", "").await;
    auth.says("t", Says::Gate("alice"));
    let calls = (0..300).map(|number| {
        let call = world.pay(&format!("{KEY}-{number}")).header("authorization", "Bearer t");
        tokio::spawn(call.send())
    });
    let calls: Vec<_> = calls.collect();
    until("surplus ones are refused", async || {
        calls.iter().filter(|call| call.is_finished()).count() >= 44
    })
    .await;
    auth.open_gate();
    let answers = join_all(calls).await;
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().unwrap()).collect();
    let overloaded = answers.iter().filter(|answer| answer.code() == "overloaded").count();
    assert!((44..300).contains(&overloaded), "{overloaded}");
    assert!(auth.asked().len() <= 256);
    assert!(answers.iter().all(|answer| answer.status() == 201 || answer.status() == 503));
}
