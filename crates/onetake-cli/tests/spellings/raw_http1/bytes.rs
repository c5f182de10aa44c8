//! Conversations of odd HTTP/1 requests.

use super::super::raw::{Dice, mutate};

/// Headers that say where a body ends. `LEN` is the length of the body.
const FRAMING: &[&str] = &[
    "Content-Length: LEN",
    "Content-Length: LEN\r\nContent-Length: LEN",
    "Content-Length: LEN, LEN",
    "Content-Length: LEN\r\nContent-Length: 0",
    "Content-Length: 0\r\nContent-Length: LEN",
    "Content-Length: +LEN",
    "Content-Length: 0LEN",
    "Content-Length: LEN ",
    "Content-Length:LEN",
    "Content-Length : LEN",
    " Content-Length: LEN",
    "Content-Length: LENx",
    "Content-Length: 0xLEN",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Content-Length:\tLEN",
    "Content-Length: \x0bLEN",
    "Content_Length: LEN",
    "Content-Length: LEN\nX: y",
    "X: y\r\n Content-Length: LEN",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: Chunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding:\tchunked",
    "Transfer-Encoding: \x0bchunked",
    "Transfer-Encoding : chunked",
    " Transfer-Encoding: chunked",
    "Transfer-Encoding:\r\n chunked",
    "X: y\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
    "Transfer-Encoding: chunked\r\nContent-Length: LEN",
    "Content-Length: LEN\r\nTransfer-Encoding: chunked",
    "Content-Length: 3\r\nTransfer-Encoding: chunked",
    "Transfer_Encoding: chunked",
    "Transfer-Encoding\x00: chunked",
    "TE: chunked",
    "",
];

const SIZES: &[&str] = &[
    "SIZE",
    "SIZE",
    "SIZE",
    "0SIZE",
    "SIZE;a=b",
    "SIZE ;a",
    "SIZE ",
    " SIZE",
    "0xSIZE",
    "+SIZE",
    "SIZE;a=\"\r\n\"",
    "SIZE\t",
    "000000000000000000SIZE",
    "1000000000000000SIZE",
    "-SIZE",
    "",
];
const ENDS: &[&str] = &["\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "\r\r\n"];
const HOSTS: &[&str] = &[
    "Host: a.test",
    "Host: a.test",
    "Host: a.test",
    "Host: a.test",
    "Host: a.test",
    "Host:a.test",
    "Host: a.test\r\nHost: b.test",
    "Host : a.test",
    "host: a.test",
    "Host: a.test:80",
    "X: y",
];
const VERSIONS: &[&str] = &[
    "HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1",
];
const METHODS: &[&str] = &["POST", "POST", "POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS"];
const CONNECTIONS: &[&str] = &[
    "",
    "",
    "",
    "Connection: keep-alive\r\n",
    "Connection: content-length\r\n",
    "Connection: transfer-encoding\r\n",
    "Expect: 100-continue\r\n",
    "Upgrade: h2c\r\n",
];

/// A conversation: one or two odd requests, and a last one that shows where they ended.
pub(super) fn conversation(case: u64, dice: &mut Dice) -> Vec<u8> {
    let mut text = String::new();
    for number in 0..=dice.roll(2) {
        if dice.one_in(12) {
            text.push_str(dice.pick(&["\r\n", "\n", "\r\n\r\n", " "]));
        }
        text.push_str(&request(case, number, dice));
    }
    let mut bytes = text.into_bytes();
    mutate(&mut bytes, case, dice);
    let last = format!("GET /{case}/last HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    bytes.extend_from_slice(last.as_bytes());
    bytes
}

/// A request that is right except for its framing, and now and then for one more part: a request
/// with many mistakes would be refused by everybody.
fn request(case: u64, number: usize, dice: &mut Dice) -> String {
    let hidden = format!("GET /{case}/hidden{number} HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let body = if dice.one_in(2) { hidden } else { "hello".to_owned() };
    let usual = ["Content-Length: LEN", "Transfer-Encoding: chunked"];
    let framing = if dice.one_in(2) { dice.pick(&usual) } else { dice.pick(FRAMING) };
    let is_chunked = framing.contains("hunked");
    let body = if is_chunked && !dice.one_in(8) { chunks(&body, dice) } else { body };
    let body = if framing.is_empty() { String::new() } else { body };
    let framing = framing.replace("LEN", &body.len().to_string());
    let part = |usual: &'static str, choices: &[&'static str], dice: &mut Dice| {
        if dice.one_in(12) { dice.pick(choices) } else { usual }
    };
    let method = dice.pick(METHODS);
    let end = part("\r\n", ENDS, dice);
    let version = part("HTTP/1.1", VERSIONS, dice);
    let authority = part("", &["http://a.test", "http://b.test"], dice);
    let space = part(" ", &["\t", "  "], dice);
    let connection = part("", CONNECTIONS, dice).replace("\r\n", end);
    let headers = [part("Host: a.test", HOSTS, dice), &framing].join("\r\n");
    let headers = headers.replace("\r\n", end);
    format!(
        "{method}{space}{authority}/{case}/first{number} {version}{end}{connection}{headers}{end}\
         {end}{body}"
    )
}

/// A chunked body, with at most a few mistakes.
fn chunks(body: &str, dice: &mut Dice) -> String {
    let odd = |usual: &'static str, choices: &[&'static str], dice: &mut Dice| {
        if dice.one_in(6) { dice.pick(choices) } else { usual }
    };
    let size = odd("SIZE", SIZES, dice).replace("SIZE", &format!("{:x}", body.len()));
    let (one, two) = (odd("\r\n", ENDS, dice), odd("\r\n", ENDS, dice));
    let trailer = odd("", &["X: y\r\n", "Content-Length: 9\r\n", "x\r\n"], dice);
    let last = odd("0", &["00", "0;a", "0 ", "-0", ""], dice);
    format!("{size}{one}{body}{two}{last}\r\n{trailer}\r\n")
}
