//! Behaviour of calls beside the scenarios of the suite.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, Request};
use onetake_client::{CallDeadline, CallReport, Error, Intent, Onetake};

use crate::server::{FastClock, Half, LIBRARIES, Server, fast, reply};

#[tokio::test]
async fn every_attempt_has_the_same_key_and_body_and_fresh_headers() {
    for library in LIBRARIES {
        let server = Server::with_statuses(&[503, 201]).await;
        let token = Arc::new(AtomicUsize::new(1));
        let headers = move || {
            let token = token.fetch_add(1, Ordering::Relaxed);
            let made = HeaderValue::from_str(&format!("Bearer {token}"));
            async move { Ok(HeaderMap::from_iter([(http::header::AUTHORIZATION, made?)])) }
        };
        let onetake = fast().headers(headers).build();
        let response = library.post(&onetake, &server).await.unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(response.body(), "{}");
        let bodies: Vec<_> = server.received().into_iter().map(|one| one.body).collect();
        assert_eq!(bodies, ["{\"amount\":10}"; 2]);
        let tokens = ["Bearer 1", "Bearer 2"].map(|token| Some(token.to_owned()));
        assert_eq!(server.headers("authorization"), tokens, "{library:?}");
        let report = response.extensions().get::<CallReport>().unwrap();
        assert_eq!(report.attempts, 2);
        let key = Some(report.intent.key().to_owned());
        assert_eq!(server.headers("idempotency-key"), [key.clone(), key]);
    }
}

#[tokio::test]
async fn headers_that_cannot_be_made_are_a_failed_attempt() {
    for library in LIBRARIES {
        let server = Server::with_statuses(&[201]).await;
        let calls = Arc::new(AtomicUsize::new(0));
        let headers = move || {
            let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
            async move { if is_first { Err("no token".into()) } else { Ok(HeaderMap::new()) } }
        };
        let onetake = fast().headers(headers).build();
        let response = library.post(&onetake, &server).await.unwrap();
        let report = response.extensions().get::<CallReport>().unwrap();
        assert_eq!((report.attempts, server.received().len()), (2, 1));
    }
}

#[tokio::test]
async fn an_intent_in_the_request_gives_the_key() {
    for library in LIBRARIES {
        let server = Server::with_statuses(&[201]).await;
        let intent = Intent::from_ids("checkout", &["order-2041"]);
        let request = Request::post(server.url()).extension(intent.clone()).body("").unwrap();
        library.send(&Onetake::new(), request).await.unwrap();
        assert_eq!(server.headers("idempotency-key"), [Some(intent.key().to_owned())]);
    }
}

#[tokio::test]
async fn other_requests_and_refusals_are_as_before() {
    for library in LIBRARIES {
        let server = Server::with_statuses(&[503, 402]).await;
        let get = Request::get(server.url()).body("").unwrap();
        let response = library.send(&Onetake::new(), get).await.unwrap();
        assert_eq!(response.status(), 503);
        assert_eq!(server.headers("idempotency-key"), [None]);
        assert_eq!(library.post(&Onetake::new(), &server).await.unwrap().status(), 402);
        let onetake = Onetake::builder().refusals_are_errors().build();
        let error = library.post(&onetake, &server).await.unwrap_err();
        assert!(matches!(&error, Error::Refused(failure) if failure.attempts == 1), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_and_the_cause_is_kept() {
    for library in LIBRARIES {
        // The port of a listener that is closed.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/charges", listener.local_addr().unwrap());
        drop(listener);
        let error = library.send(&fast().build(), Request::post(url).body("").unwrap()).await;
        let error = error.unwrap_err();
        assert!(matches!(&error, Error::Unavailable(_)), "{error}");
        let mut causes =
            std::iter::successors(std::error::Error::source(&error), |one| one.source());
        assert!(causes.any(|cause| cause.to_string().contains("refused")), "{error:?}");
    }
}

/// A future that is dropped closes the connection of its attempt.
#[tokio::test]
async fn a_dropped_call_closes_the_connection_of_its_attempt() {
    use tokio::io::AsyncReadExt as _;
    for library in LIBRARIES {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/charges", listener.local_addr().unwrap());
        let onetake = Onetake::new();
        let mut stream = tokio::select! {
            ended = library.send(&onetake, Request::post(url).body("x").unwrap()) => {
                panic!("{ended:?}")
            }
            accepted = async {
                let (mut accepted, _) = listener.accept().await.unwrap();
                accepted.read_u8().await.unwrap();
                accepted
            } => accepted,
        };
        let mut rest = Vec::new();
        // Ends only if the other side closes the connection. A reset is an end as well.
        let _ended = stream.read_to_end(&mut rest).await;
        assert!(String::from_utf8(rest).unwrap().to_lowercase().contains("idempotency-key"));
    }
}

#[tokio::test]
async fn the_deadline_of_a_call_is_sent_and_ends_it() {
    for library in LIBRARIES {
        let server = Server::start(|_, _| reply(503, "retry-after: 7", "")).await;
        let request = Request::post(server.url()).extension(CallDeadline(Duration::from_secs(7)));
        let error = library.send(&fast().build(), request.body("").unwrap()).await.unwrap_err();
        assert!(error.to_string().contains("limit: deadline"), "{error}");
        assert_eq!(server.headers("x-request-timeout-ms"), [Some("7000".to_owned())]);
        let short = fast().build().within(Duration::from_secs(3));
        library.post(&short, &server).await.unwrap_err();
        assert_eq!(server.headers("x-request-timeout-ms")[1].as_deref(), Some("3000"));
    }
}

#[tokio::test]
async fn a_wall_clock_that_jumps_changes_neither_deadline_nor_delays() {
    for library in LIBRARIES {
        let server = Server::with_statuses(&[503, 503, 201]).await;
        let mut jumps = [0_u64, 100_000_000_000, 5, 1 << 40].into_iter().cycle();
        let clock =
            FastClock::with_wall(move || UNIX_EPOCH + Duration::from_secs(jumps.next().unwrap()));
        let onetake = Onetake::builder().clock(clock.clone()).rng(Half).build();
        assert_eq!(library.post(&onetake, &server).await.unwrap().status(), 201);
        assert_eq!(clock.slept_ms(), [100, 200], "{library:?}");
        let times = ["30000", "29900", "29700"].map(|time| Some(time.to_owned()));
        assert_eq!(server.headers("x-request-timeout-ms"), times);
    }
}

#[tokio::test]
async fn a_handle_on_another_server_is_not_asked() {
    for library in LIBRARIES {
        let other = Server::with_statuses(&[200]).await;
        let location = format!("location: {}/.onetake/operations/h", other.url());
        let server = Server::start(move |_, _| reply(202, &location, "")).await;
        let error = library.post(&fast().build(), &server).await.unwrap_err();
        assert!(matches!(error, Error::InProgress(_)), "{error}");
        assert_eq!((server.received().len(), other.received().len()), (1, 0), "{library:?}");
    }
}

#[tokio::test]
async fn a_poll_has_neither_key_nor_body() {
    for library in LIBRARIES {
        let server = Server::start(|number, _| match number {
            1 => reply(202, "location: /.onetake/operations/h?x=1", ""),
            _ => reply(201, "idempotent-replayed: true", "done"),
        });
        let server = server.await;
        let request = Request::post(format!("{}/charges", server.url()));
        let request = request.header("content-type", "text/plain").header("x-tenant", "acme");
        let request = request.header("idempotency-key", "order-2041-checkout");
        let response = library.send(&fast().build(), request.body("abc").unwrap()).await.unwrap();
        assert_eq!((response.status().as_u16(), &response.body()[..]), (201, &b"done"[..]));
        let poll = &server.received()[1];
        assert_eq!(poll.line, "GET /.onetake/operations/h?x=1 HTTP/1.1");
        assert_eq!((poll.body.as_str(), poll.header("x-tenant")), ("", Some("acme")));
        for name in ["idempotency-key", "content-type", "x-request-timeout-ms"] {
            assert_eq!(poll.header(name), None, "{library:?}");
        }
    }
}

#[tokio::test]
async fn errors_say_what_to_do_and_hold_the_answer() {
    let body = r#"{"code":"previous_attempt_failed","detail":"It broke.","reference":"2KPP"}"#;
    for library in LIBRARIES {
        let json = "content-type: application/problem+json";
        let server = Server::start(move |_, _| reply(500, json, body)).await;
        let error = library.post(&Onetake::new(), &server).await.unwrap_err();
        for words in ["do not pick a new key", "It broke.", "reference 2KPP", "status 500"] {
            assert!(error.to_string().contains(words), "{error}");
        }
        let Error::OutcomeUnknown(failure) = error else { panic!("{error}") };
        let problem = failure.problem.as_ref().unwrap();
        assert_eq!(
            (problem.code(), problem.reference()),
            ("previous_attempt_failed", Some("2KPP"))
        );
        assert_eq!(failure.response.as_ref().unwrap().body(), body);
        assert_eq!(failure.intent.key(), server.headers("idempotency-key")[0].as_deref().unwrap());
    }
}

#[tokio::test]
async fn observers_see_what_happens_and_no_key() {
    for library in LIBRARIES {
        let server = Server::with_statuses(&[503, 201]).await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let events = Arc::clone(&seen);
        let onetake =
            fast().observe(move |event| events.lock().unwrap().push(format!("{event:?}")));
        let response = library.post(&onetake.build(), &server).await.unwrap();
        let seen = seen.lock().unwrap().join("\n");
        let names: Vec<_> = seen.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(names, ["Attempt", "Retry", "Attempt", "End"]);
        let report = response.extensions().get::<CallReport>().unwrap();
        assert!(!seen.contains(report.intent.key()) && !seen.contains("amount"), "{seen}");
    }
}

#[tokio::test]
async fn a_response_of_reqwest_keeps_its_url_and_its_own_methods() {
    use onetake_client::reqwest::SendWith as _;
    let server = Server::start(|_, _| reply(402, "", "no")).await;
    let url = format!("{}/charges?x=1", server.url());
    let request = reqwest::Client::new().post(&url).body("abc");
    let response = request.send_with(&Onetake::new()).await.unwrap();
    assert_eq!(response.url().as_str(), url);
    let error = response.error_for_status().unwrap_err();
    assert_eq!(error.status().unwrap(), 402);
}
