//! Metrics of `forward_auth`: every question is counted once, with any result.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use onetake_sim::client::Client;
use onetake_sim::servers::until;
use onetake_sim::upstream::Upstream;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::KEY;
use crate::common::forward_auth_service::{Auth, Says};
use crate::common::process::Process;

/// Counters by answer, the number of timed questions, and their total seconds.
async fn counted(gateway: &Process) -> (BTreeMap<String, usize>, usize, f64) {
    let text = Client::new(gateway.admin).post("/metrics").method("GET").body("").send().await;
    let text = text.unwrap().text();
    for name in ["onetake_forward_auth_total", "onetake_forward_auth_seconds"] {
        assert!(text.contains(&format!("# HELP {name} ")), "{name}: {text}");
    }
    let after = |start: &'static str| text.lines().filter_map(move |line| line.strip_prefix(start));
    let number = |name| after(name).next().map_or(0.0, |number| number.trim().parse().unwrap());
    let answers = after("onetake_forward_auth_total{answer=\"").map(|rest| {
        let (answer, count) = rest.split_once("\"} ").unwrap();
        (answer.to_owned(), count.parse().unwrap())
    });
    let timed = after("onetake_forward_auth_seconds_bucket{le=\"+Inf\"} ").next();
    let timed = timed.map_or(0, |count| count.parse().unwrap());
    (answers.collect(), timed, number("onetake_forward_auth_seconds_sum "))
}

fn counts<const N: usize>(expected: [(&str, usize); N]) -> BTreeMap<String, usize> {
    let all = ["abandoned", "allowed", "cached", "overloaded", "refused", "unavailable"];
    let zeros = all.into_iter().map(|answer| (answer, 0));
    zeros.chain(expected).map(|(answer, count)| (answer.to_owned(), count)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_question_is_counted_once() {
    let (auth, upstream) = (Auth::start().await, Upstream::start().await.unwrap());
    let folder = tempfile::tempdir().unwrap();
    let route = |path: &str, cache: &str, timeout: &str| {
        let url = format!("http://{}", auth.address);
        format!(
            "[[route]]\nmatch = \"POST /{path}/{{*rest}}\"\ntenant = {{ forward_auth = \
             {{ url = \"{url}\", cache = \"{cache}\", timeout = \"{timeout}\" }} }}\n"
        )
    };
    let patient = route("pay", "60s", "30s") + &route("patient", "0s", "30s");
    let routes = patient + &route("impatient", "0s", "200ms");
    let gateway = Process::start(folder.path(), &routes, &upstream.url()).await;
    assert_eq!(counted(&gateway).await, (counts([]), 0, 0.0), "there from the start");

    let pay = async |path: &str, key: &str| {
        let call = gateway.client.post(path).without("authorization").key(key);
        call.header("authorization", "Bearer t").send().await.unwrap()
    };
    for (says, path, status) in [
        (Says::Refuse, "/pay/charge", 401),
        (Says::Forbid, "/pay/charge", 403),
        (Says::Break, "/pay/charge", 503),
        (Says::Nameless, "/pay/charge", 503),
        (Says::Nothing, "/impatient/charge", 503),
        (Says::Allow("alice"), "/pay/charge", 201),
        // The answer is cached now.
        (Says::Refuse, "/pay/charge", 201),
        (Says::Break, "/pay/charge", 201),
    ] {
        auth.says("t", says);
        assert_eq!(pay(path, KEY).await.status(), status, "{says:?}");
    }
    let mut expected = counts([("refused", 2), ("unavailable", 3), ("allowed", 1), ("cached", 2)]);
    let (answers, timed, seconds) = counted(&gateway).await;
    assert_eq!((&answers, timed), (&expected, 6));
    assert!((0.2..60.0).contains(&seconds), "one of them took the whole timeout: {seconds}");

    // A client that does not wait for the response.
    auth.says("t", Says::Nothing);
    let asked = auth.asked().len();
    let mut client = TcpStream::connect(gateway.address).await.unwrap();
    let head = format!(
        "POST /patient/charge HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer t\r\n\
         Idempotency-Key: {KEY}-gone\r\nContent-Length: 0\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    until("it is asked", async || auth.asked().len() > asked).await;
    drop(client);
    expected.insert("abandoned".to_owned(), 1);
    until("it is counted", async || {
        let (answers, timed, _) = counted(&gateway).await;
        answers == expected && timed == 7
    })
    .await;

    // More concurrent questions than may wait.
    auth.says("t", Says::Gate("alice"));
    let calls = (0..300).map(|number| {
        let call = gateway.client.post("/patient/charge").without("authorization");
        let call = call.key(&format!("{KEY}-{number}")).header("authorization", "Bearer t");
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
    expected.insert("overloaded".to_owned(), overloaded);
    expected.insert("allowed".to_owned(), 1 + 300 - overloaded);
    let (answers, timed, _) = counted(&gateway).await;
    assert_eq!(
        (answers, timed),
        (expected, 7 + 300 - overloaded),
        "who was not asked is not timed"
    );
}
