use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// The number of the request with two lengths, if the bytes arrive in pieces of this size.
fn scan(bytes: &[u8], step: usize) -> Option<u64> {
    let mut scanner = HeadScanner::default();
    let found: Vec<u64> = bytes.chunks(step).filter_map(|piece| scanner.scan(piece)).collect();
    assert!(found.len() < 2, "{found:?}");
    found.first().copied()
}

const TWO: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";

#[test]
fn two_lengths_are_found_wherever_the_bytes_are_cut() {
    let get = "GET /a HTTP/1.1\r\nHost: a\r\nCookie: content-length: 5\r\n\r\n";
    let post = format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{TWO}", TWO.len());
    let chunked = format!(
        "PUT / HTTP/1.1\nTransfer-Encoding:chunked\n\n{:x};a=\"b\"\r\n{TWO}\r\n1 \r\n0\r\n\
         0\r\nx: y\r\ncontent-length: 7\r\n\r\n",
        TWO.len()
    );
    let conversation = format!("\r\n{get}{post}\n\r\n{chunked}{get}");
    for step in 1..conversation.len() {
        assert_eq!(scan(conversation.as_bytes(), step), None, "{step}");
    }
    for (head, number) in [
        (TWO.to_owned(), 1),
        (format!("\r\n\n{TWO}"), 1),
        (format!("{conversation}{TWO}"), 5),
        (format!("{get}{TWO}{TWO}"), 2),
        ("T / HTTP/1.1\ncontent-length:\t5\ntransfer-encoding:chunked\n\n".to_owned(), 1),
        ("C / HTTP/1.1\r\nTransfer-Encoding: x\r\nCONTENT-LENGTH: 0\r\n\r\n".to_owned(), 1),
    ] {
        for step in 1..=head.len() {
            assert_eq!(scan(head.as_bytes(), step), Some(number), "{step} {head}");
        }
    }
}

#[test]
fn other_headers_are_no_lengths() {
    for header in [
        "Content-Length-X: 5",
        "X-Content-Length: 5",
        "Content_Length: 5",
        "Content-Lengt: 5",
        "Content-Type: content-length:",
        "X: Content-Length: 5",
    ] {
        let head = format!("POST / HTTP/1.1\r\n{header}\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(scan(head.as_bytes(), head.len()), None, "{header}");
    }
}

/// A small generator of test data: the same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, max: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % max
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    /// A request that is often valid, and often nearly so.
    fn request(&mut self) -> String {
        let mut text = self.pick(&["", "", "", "\r\n", "\n"]).to_owned();
        text.push_str(self.pick(&["GET / HTTP/1.1", "POST / HTTP/1.1", "TRACE / HTTP/1.1"]));
        text.push_str(self.pick(&["\r\n", "\r\n", "\n"]));
        let (mut is_chunked, mut has_length) = (false, false);
        for _ in 0..self.below(5) {
            let line = self.pick(&[
                "Content-Length: 5",
                "content-LENGTH:\t5 ",
                "Transfer-Encoding: chunked",
                "transfer-encoding:Chunked",
                "Transfer-Encoding: gzip",
                "Content-Length: 6",
                "Content-Length-X: 5",
                "Content-Type: text/plain",
                "TE: trailers",
                "Cookie: content-length: 9",
                "Content-Length : 5",
                " transfer-encoding: chunked",
            ]);
            let name = line.to_ascii_lowercase();
            is_chunked = is_chunked || name.starts_with("transfer-encoding:");
            has_length = has_length || name.starts_with("content-length:");
            text.push_str(line);
            text.push_str(self.pick(&["\r\n", "\r\n", "\r\n", "\n", "\r\r\n"]));
        }
        text.push_str(self.pick(&["\r\n", "\r\n", "\r\n", "\n"]));
        let body = match (is_chunked, has_length) {
            (true, _) => self.pick(&[
                "5\r\nhello\r\n0\r\n\r\n",
                "0\r\n\r\n",
                "00A;x=\"y\"\r\n0\r\n\r\nGET \r\n\r\n0\r\n\r\n",
                "5 \t\r\nhello\r\n0\r\nx: y\r\nz: a\n\r\n\r\n",
                "5\r\nhello\r\n0\r\nx: y\n\r\n\r\n",
                "5;\nhello\r\n0\r\n\r\n",
                "5\nhello\n0\n\n",
                "1\r\nG\r\n0\r\n\r\rET",
            ]),
            (false, true) => self.pick(&["hello", "\r\n\r\n\r", "GET /", "hello "]),
            (false, false) => "",
        };
        text.push_str(body);
        text
    }

    fn conversation(&mut self) -> Vec<u8> {
        let count = 1 + self.below(5);
        let mut bytes = (0..count).map(|_| self.request()).collect::<String>().into_bytes();
        for _ in 0..self.below(12).saturating_sub(9) {
            let at = self.below(bytes.len());
            match self.below(3) {
                0 => bytes[at] = self.pick(&["\r", "\n", " ", ":", ";", "5"]).as_bytes()[0],
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, self.pick(&["\r", "\n", " ", ":", "0"]).as_bytes()[0]),
            }
        }
        bytes
    }
}

/// Reads the body of a request. A body that breaks off gets 400.
async fn read_whole(request: Request<Incoming>) -> Result<Response<String>, Infallible> {
    let mut response = Response::new(String::new());
    if request.into_body().collect().await.is_err() {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    Ok(response)
}

/// The requests that hyper reads to their ends. True for one after which hyper ends the connection:
/// no request here asks for that.
async fn hyper_reads(bytes: &[u8]) -> Vec<bool> {
    let (mut near, far) = tokio::io::duplex(1 << 16);
    let mut builder = hyper::server::conn::http1::Builder::new();
    let connection =
        builder.half_close(true).serve_connection(TokioIo::new(far), service_fn(read_whole));
    let exchange = async {
        near.write_all(bytes).await.unwrap();
        near.shutdown().await.unwrap();
        let mut answers = String::new();
        near.read_to_string(&mut answers).await.unwrap();
        answers
    };
    let (answers, _) = tokio::join!(exchange, connection);
    let answers = answers.split("HTTP/1.1 ").filter(|answer| answer.starts_with("200"));
    answers.map(|answer| answer.contains("connection: close")).collect()
}

/// hyper ends a connection after a request with two lengths. In thousands of conversations, the
/// scanner finds the same requests.
#[tokio::test]
async fn the_scanner_and_hyper_find_the_same_requests() {
    let mut numbers = Numbers(11);
    let (mut with_two, mut without) = (0, 0);
    for _ in 0..20_000 {
        let bytes = numbers.conversation();
        let read = hyper_reads(&bytes).await;
        let found = scan(&bytes, 1 + numbers.below(40));
        for (number, has_two) in (1..).zip(read) {
            *if has_two { &mut with_two } else { &mut without } += 1;
            assert_eq!(found == Some(number), has_two, "{number} of {}", bytes.escape_ascii());
        }
    }
    println!("{with_two} requests with two lengths, {without} others");
    assert!(with_two > 300 && without > 5_000);
}
