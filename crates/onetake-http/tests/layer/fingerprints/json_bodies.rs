//! Fingerprints of JSON bodies, following the rules of docs/CONFIGURATION.md.

use axum::body::Body;
use http::Request;
use onetake_http::Policy;
use onetake_http::json::Selection;

use super::request_model::gzip;
use super::{Node, Told, json, mismatch, pointers, refused};

const MIB: usize = 1 << 20;

fn node() -> Node {
    Node::new(Policy::new().fingerprint(json(Selection::Whole)))
}

fn post(key: &str, encoding: Option<&str>, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post("/charges").header("content-type", "application/json");
    let request = request.header("idempotency-key", format!("{key}-0123456789abcdef"));
    let request = match encoding {
        Some(encoding) => request.header("content-encoding", encoding),
        None => request,
    };
    request.body(body.into()).unwrap()
}

/// Checks that the bodies `ones` are one request, and that `others` are refused under the same key.
async fn one_and_others(ones: &[&str], others: &[&str]) {
    let node = node();
    for (number, first) in ones.iter().enumerate() {
        let key = number.to_string();
        assert_eq!(node.send(post(&key, None, first.to_string())).await, Told::Ran, "{first}");
        for same in ones {
            let told = node.send(post(&key, None, same.to_string())).await;
            assert_eq!(told, Told::Replayed, "{first} {same}");
        }
        for other in others {
            let told = node.send(post(&key, None, other.to_string())).await;
            assert_eq!(told, mismatch(), "{first} {other}");
        }
    }
    assert_eq!(node.runs(), ones.len());
}

/// Checks that the request is refused and that nothing is run or claimed. The key is still free.
async fn nothing_happens(encoding: Option<&str>, body: Vec<u8>, told: Told) {
    let node = node();
    assert_eq!(node.send(post("key", encoding, body)).await, told);
    assert!(node.store.is_empty());
    assert_eq!(node.send(post("key", None, "{}")).await, Told::Ran);
}

#[tokio::test]
async fn the_order_of_members_does_not_count_and_that_of_elements_does() {
    let ones = [r#"{"a":1,"b":{"c":[1,2],"d":null}}"#, r#"{"b":{"d":null,"c":[1,2]},"a":1}"#];
    let others = [r#"{"a":1,"b":{"c":[2,1],"d":null}}"#, r#"{"a":1,"b":{"c":[1,2]}}"#];
    one_and_others(&ones, &others).await;
}

#[tokio::test]
async fn white_space_does_not_count_outside_of_strings() {
    let ones = ["{\"a\":[1,\"x y\"]}", " {\t\"a\" :\r\n[ 1 , \"x y\" ] }\n"];
    one_and_others(&ones, &["{\"a\":[1,\"x  y\"]}", "{\"a\":[1,\"x y \"]}"]).await;
}

#[tokio::test]
async fn one_and_one_point_zero_are_one_number() {
    let ones = ["[1]", "[1.0]", "[1e0]", "[10e-1]", "[0.1E+1]", "[1.000]"];
    one_and_others(&ones, &["[\"1\"]", "[-1]", "[1.0000000000000000001]", "[true]", "1"]).await;
    one_and_others(&["0", "-0", "0.0", "0e9"], &["1e-400", "false", "\"0\"", "null", ""]).await;
}

#[tokio::test]
async fn every_digit_of_a_large_number_counts() {
    one_and_others(&["9007199254740993", "9007199254740993.0"], &["9007199254740992"]).await;
    one_and_others(&["1e400", "10e399"], &["1e401", "1e309", "-1e400"]).await;
    one_and_others(&["0.1"], &["0.1000000000000000055511151231257827"]).await;
}

#[tokio::test]
async fn strings_are_compared_by_their_characters() {
    let ones = [r#""é😀/""#, r#""\u00e9\uD83D\uDE00\/""#];
    // Strings that look the same, that lack a character, or that differ in case.
    one_and_others(&ones, &[r#""e\u0301😀/""#, r#""é😀""#, r#""É😀/""#]).await;
    let half = br#""\ud83d""#.to_vec();
    nothing_happens(None, half, refused(400, "request_body_invalid")).await;
}

#[tokio::test]
async fn a_member_that_stands_twice_is_refused() {
    let invalid = || refused(400, "request_body_invalid");
    for body in [
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"a":2}"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"[{"b":[{"a":1,"c":0,"a":2}]}]"#,
    ] {
        nothing_happens(None, body.into(), invalid()).await;
    }
    // A duplicate member is refused even where it does not count. The service could read either of
    // the two.
    let policy = || Policy::new().fingerprint(json(Selection::Exclude(pointers(&["/a"]))));
    let node = Node::new(policy());
    assert_eq!(node.send(post("key", None, r#"{"a":1,"a":2,"b":3}"#)).await, invalid());
    // The same name in different objects is no duplicate.
    one_and_others(&[r#"{"a":{"a":1}}"#], &[r#"{"a":1}"#]).await;
}

#[tokio::test]
async fn nesting_is_bounded() {
    let nested = |open: &str, close: &str, depth| {
        format!("{}0{}", open.repeat(depth), close.repeat(depth)).into_bytes()
    };
    let node = node();
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":", "}]")] {
        let levels = open.matches(['[', '{']).count();
        let deepest = nested(open, close, 128 / levels);
        assert_eq!(node.send(post(open, None, deepest.clone())).await, Told::Ran);
        assert_eq!(node.send(post(open, Some("gzip"), gzip(&deepest))).await, Told::Replayed);
        let too_deep = || refused(400, "request_body_invalid");
        nothing_happens(None, nested(open, close, 128 / levels + 1), too_deep()).await;
        // The deepest nesting that a body can have must not overflow the stack.
        nothing_happens(None, open.repeat(MIB / open.len()).into_bytes(), too_deep()).await;
        nothing_happens(Some("gzip"), gzip(&nested(open, close, 10_000)), too_deep()).await;
    }
}

/// A JSON body of exactly this many bytes.
fn sized(bytes: usize) -> Vec<u8> {
    format!("[\"{}\"]", "x".repeat(bytes - 4)).into_bytes()
}

#[tokio::test]
async fn a_body_may_have_a_mebibyte_and_no_more() {
    let node = node();
    let mut largest = sized(MIB);
    assert_eq!(node.send(post("key", None, largest.clone())).await, Told::Ran);
    assert_eq!(node.send(post("key", None, largest.clone())).await, Told::Replayed);
    assert_eq!(node.send(post("key", Some("gzip"), gzip(&largest))).await, Told::Replayed);
    // The very last byte counts.
    largest[MIB - 3] = b'y';
    assert_eq!(node.send(post("key", None, largest)).await, mismatch());
    let too_large = || refused(413, "request_body_too_large");
    nothing_happens(None, sized(MIB + 1), too_large()).await;
    nothing_happens(Some("gzip"), gzip(&sized(MIB + 1)), too_large()).await;
    // White space counts towards the size.
    let padded = [sized(MIB), b" ".to_vec()].concat();
    nothing_happens(None, padded, too_large()).await;
    assert_eq!(node.runs(), 1);
}

#[tokio::test]
async fn gzip_is_read_and_nothing_else_is_guessed() {
    let text = br#"{"a":1}"#;
    let node = node();
    assert_eq!(node.send(post("key", Some("gzip"), gzip(text))).await, Told::Ran);
    let two_members = [gzip(b" {\"a\""), gzip(b":1.0}")].concat();
    for (encoding, body) in [
        (None, text.to_vec()),
        (Some("identity"), text.to_vec()),
        (Some("x-gzip"), gzip(text)),
        (Some("GZip"), gzip(text)),
        (Some("gzip"), two_members),
    ] {
        assert_eq!(node.send(post("key", encoding, body)).await, Told::Replayed, "{encoding:?}");
    }
    assert_eq!(node.send(post("key", Some("gzip"), gzip(b"{\"a\":2}"))).await, mismatch());

    let (good, invalid) = (gzip(text), || refused(400, "request_body_invalid"));
    for length in 1..good.len() {
        nothing_happens(Some("gzip"), good[..length].to_vec(), invalid()).await;
    }
    let mut wrong_sum = good.clone();
    *wrong_sum.iter_mut().rev().nth(5).unwrap() ^= 1;
    let trailing = [&good[..], b"{}"].concat();
    for body in [text.to_vec(), wrong_sum, trailing, gzip(b""), gzip(b"{"), gzip(&good)] {
        nothing_happens(Some("gzip"), body, invalid()).await;
    }
    // A gzip bomb: 100 MiB in about 100 KB.
    let bomb = gzip(&vec![b' '; 100 * MIB]);
    assert!(bomb.len() < MIB);
    nothing_happens(Some("gzip"), bomb, refused(413, "request_body_too_large")).await;
    let unsupported = || refused(415, "request_encoding_unsupported");
    for encoding in ["br", "zstd", "deflate", "compress", "gzip, gzip", "gzip,identity", "gzip;q=1"]
    {
        nothing_happens(Some(encoding), gzip(&good), unsupported()).await;
    }
}

#[tokio::test]
async fn no_body_is_nothing_to_compare_and_no_json_is_refused() {
    one_and_others(&[""], &["null", "\"\"", "{}"]).await;
    for body in [
        "{",
        "a=1&b=2",
        "{} {}",
        "\u{feff}{}",
        "\"\u{1}\"",
        "01",
        "[1,]",
        "// {}",
        "NaN",
        "1e9223372036854775808",
    ] {
        nothing_happens(None, body.into(), refused(400, "request_body_invalid")).await;
    }
    nothing_happens(None, b"\"\xff\"".to_vec(), refused(400, "request_body_invalid")).await;
}
