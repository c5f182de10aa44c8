//! Conversations of odd HTTP/2 requests, made of frames.

use super::super::raw::{Dice, mutate};

/// Types of frames (RFC 9113, 6).
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
/// Flags of frames.
pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const HAS_PRIORITY: u8 = 0x20;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

type Headers = Vec<(Vec<u8>, Vec<u8>)>;

/// A conversation, with the streams that it opens.
pub(super) struct Conversation {
    pub(super) bytes: Vec<u8>,
    pub(super) streams: Vec<u32>,
}

/// A frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length.get(1..).unwrap().to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A block of headers (HPACK): literals without indexing and without Huffman codes.
pub(super) fn block<N: AsRef<[u8]>, V: AsRef<[u8]>>(headers: &[(N, V)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in headers {
        bytes.push(0);
        text(&mut bytes, name.as_ref());
        text(&mut bytes, value.as_ref());
    }
    bytes
}

fn text(bytes: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text.len();
    if rest < 127 {
        bytes.push(u8::try_from(rest).unwrap());
    } else {
        bytes.push(127);
        rest -= 127;
        while rest > 127 {
            bytes.push(u8::try_from(rest % 128).unwrap() | 128);
            rest /= 128;
        }
        bytes.push(u8::try_from(rest).unwrap());
    }
    bytes.extend(text);
}

/// The start of a connection.
pub(super) fn start() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// The pseudo-headers of a request.
pub(super) fn pseudo(method: &str, path: &str) -> Headers {
    let headers =
        [(":method", method), (":scheme", "http"), (":authority", "a.test"), (":path", path)];
    headers.map(|(name, value)| (name.into(), value.into())).to_vec()
}

/// A conversation: one or two odd requests, and a last one that shows whether the connection still
/// works.
pub(super) fn conversation(case: u64, dice: &mut Dice) -> Conversation {
    let mut bytes = Vec::new();
    let mut streams = Vec::new();
    let count = 1 + dice.roll(2);
    for number in 0..count {
        let stream = u32::try_from(2 * number + 1).unwrap();
        bytes.extend(request(case, stream, dice));
        streams.push(stream);
    }
    mutate(&mut bytes, case, dice);
    let stream = u32::try_from(2 * count + 1).unwrap();
    let last = block(&pseudo("GET", &format!("/{case}/last")));
    bytes.extend(frame(HEADERS, END_STREAM | END_HEADERS, stream, &last));
    streams.push(stream);
    Conversation { bytes: [start(), bytes].concat(), streams }
}

/// A request that is right except for one or two parts.
fn request(case: u64, stream: u32, dice: &mut Dice) -> Vec<u8> {
    let hidden = format!("GET /{case}/hidden{stream} HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let body = if dice.one_in(2) { hidden.as_str() } else { "hello" };
    let method = dice.pick(&["POST", "POST", "PUT", "GET", "DELETE", "OPTIONS", "PATCH"]);
    let has_body = method != "GET" && !dice.one_in(6) || dice.one_in(12);
    let body = if has_body { body.as_bytes() } else { b"" };
    let mut headers = pseudo(method, &format!("/{case}/first{stream}"));
    if dice.one_in(2) {
        headers.push((b"content-length".into(), body.len().to_string().into()));
    }
    headers.push((b"x-usual".into(), b"value".into()));
    for _ in 0..=usize::from(dice.one_in(4)) {
        if dice.one_in(2) {
            change_headers(&mut headers, case, stream, body.len(), dice);
        }
    }
    framed(&headers, body, stream, dice)
}

/// Makes one mistake in the headers, or writes them in a way that is odd and right.
fn change_headers(headers: &mut Headers, case: u64, stream: u32, length: usize, dice: &mut Dice) {
    let target = format!("/{case}/odd{stream}");
    let injected = format!(
        "x\r\ncontent-length: 0\r\n\r\nGET /{case}/hidden HTTP/1.1\r\nhost: a.test\r\n\r\n"
    );
    let line = format!("{target} HTTP/1.1\r\nhost: a.test\r\n\r\nGET /{case}/hidden");
    let set = |headers: &mut Headers, name: &str, value: &[u8]| {
        for header in headers.iter_mut().filter(|header| header.0 == name.as_bytes()) {
            header.1 = value.to_vec();
        }
    };
    let remove = |headers: &mut Headers, name: &str| headers.retain(|it| it.0 != name.as_bytes());
    let add = |headers: &mut Headers, name: &str, value: &str| {
        headers.push((name.into(), value.into()));
    };
    match dice.roll(9) {
        0 => remove(headers, dice.pick(&[":method", ":scheme", ":path", ":authority"])),
        1 => {
            let (name, value) = match dice.roll(4) {
                0 => (":method", dice.pick(&["GET", "POST", "DELETE"])),
                1 => (":path", target.as_str()),
                2 => (":authority", dice.pick(&["a.test", "b.test"])),
                _ => (":scheme", "http"),
            };
            headers.insert(dice.roll(4), (name.into(), value.into()));
        }
        2 => {
            let paths = [
                "",
                "*",
                "odd",
                &target,
                &line,
                "http://b.test/x",
                "//x",
                "/x y",
                "/x\0",
                "/x\t",
                "/x\u{7f}",
                "/x#y",
                "/x?y#z",
                "/é",
                "/%zz",
                "/x\\y",
                "?x",
                "/x\r",
                "/x\n",
            ];
            let path = dice.pick(&paths);
            // The number of the conversation must be part of a target that a server may accept.
            let path = match path.strip_prefix("/x") {
                Some(rest) => format!("{target}{rest}"),
                None => path.to_owned(),
            };
            set(headers, ":path", path.as_bytes());
        }
        3 => {
            let injected = format!("GET {line}");
            let methods = ["", "post", "P OST", "POST\0", "GET\r\n", "CONNECT", "TRACE", &injected];
            set(headers, ":method", dice.pick(&methods).as_bytes());
        }
        4 => {
            let hosts = [
                "",
                "a.test/x",
                "u@a.test",
                "a.test\r\nx: y",
                "a.test:80",
                "a.test:x",
                " a.test",
                "b.test",
            ];
            set(headers, ":authority", dice.pick(&hosts).as_bytes());
        }
        5 => set(
            headers,
            ":scheme",
            dice.pick(&["https", "", "ftp", "HTTP", "http://x", "h\r\n"]).as_bytes(),
        ),
        6 => {
            let names = [
                ("host", "a.test"),
                ("host", "b.test"),
                ("connection", "keep-alive"),
                ("connection", "content-length"),
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "identity"),
                ("te", "trailers"),
                ("te", "gzip"),
                ("upgrade", "h2c"),
                ("keep-alive", "5"),
                ("proxy-connection", "close"),
                ("expect", "100-continue"),
                ("cookie", "a=1"),
                ("cookie", "b=2"),
                ("content_length", "0"),
                ("transfer_encoding", "chunked"),
                (":status", "200"),
                (":odd", "x"),
                (":path", "/late"),
                ("X-Upper", "x"),
                ("x y", "z"),
                ("x:y", "z"),
                ("x\r\ny", "z"),
                ("x\0", "y"),
                ("", "x"),
                (":", "x"),
                ("x", ""),
                ("x", " y "),
                ("x", "a\rb"),
                ("x", "a\nb"),
                ("x", "a\0b"),
                ("x", "a\tb"),
                ("x", "é"),
                ("x", &injected),
                ("Transfer-Encoding", "chunked"),
                ("trailer", "x"),
                ("http2-settings", "x"),
                ("protocol", "x"),
            ];
            let (name, value) = *names.get(dice.roll(names.len())).unwrap();
            add(headers, name, value);
        }
        7 => {
            remove(headers, "content-length");
            let right = length.to_string();
            let more = (length + 1).to_string();
            let less = length.saturating_sub(1).to_string();
            let plus = format!("+{length}");
            let lengths =
                [&right, &more, &less, &plus, "0", "", "x", "5, 5", "99999999999999999999"];
            add(headers, "content-length", dice.pick(&lengths));
            if dice.one_in(2) {
                add(headers, "content-length", dice.pick(&lengths));
            }
        }
        _ => {
            // A pseudo-header behind the other headers.
            let pseudo = headers.remove(dice.roll(headers.len().min(4)));
            headers.push(pseudo);
        }
    }
}

/// The frames of a request, now and then with one mistake.
fn framed(headers: &Headers, body: &[u8], stream: u32, dice: &mut Dice) -> Vec<u8> {
    let block = block(headers);
    let end = if body.is_empty() { END_STREAM } else { 0 };
    let usual = frame(HEADERS, END_HEADERS | end, stream, &block);
    let data = frame(DATA, END_STREAM, stream, body);
    let data = if body.is_empty() { Vec::new() } else { data };
    if !dice.one_in(2) {
        return [usual, data].concat();
    }
    let (first, second) = block.split_at(dice.roll(block.len() + 1));
    let (begin, rest) = body.split_at(dice.roll(body.len() + 1));
    let half = frame(DATA, 0, stream, begin);
    let whole = |parts: &[&[u8]]| parts.concat();
    match dice.roll(24) {
        0 => whole(&[
            &frame(HEADERS, end, stream, first),
            &frame(CONTINUATION, END_HEADERS, stream, second),
            &data,
        ]),
        1 => {
            let mut bytes = frame(HEADERS, end, stream, b"");
            for byte in &block {
                bytes.extend(frame(CONTINUATION, 0, stream, &[*byte]));
            }
            bytes.extend(frame(CONTINUATION, END_HEADERS, stream, b""));
            bytes.extend(data);
            bytes
        }
        2 => whole(&[
            &frame(HEADERS, end, stream, first),
            &frame(PING, 0, 0, &[0; 8]),
            &frame(CONTINUATION, END_HEADERS, stream, second),
            &data,
        ]),
        3 => whole(&[
            &frame(HEADERS, end, stream, first),
            &frame(CONTINUATION, END_HEADERS, stream + 2, second),
            &data,
        ]),
        4 => {
            let padded = [&[3][..], &block, &[0; 3]].concat();
            // The last bytes of the body count as padding, or more bytes than there are.
            let count = dice.pick(&["\u{2}", "\u{5}", "\u{7f}"]).as_bytes();
            whole(&[
                &frame(HEADERS, END_HEADERS | PADDED | end, stream, &padded),
                &frame(DATA, END_STREAM | PADDED, stream, &[count, body].concat()),
            ])
        }
        5 => {
            let depends = if dice.one_in(2) { stream } else { 0 };
            let prioritised = [&depends.to_be_bytes()[..], &[15], &block].concat();
            whole(&[&frame(HEADERS, END_HEADERS | HAS_PRIORITY | end, stream, &prioritised), &data])
        }
        6 => {
            let empty = frame(DATA, 0, stream, b"");
            whole(&[
                &frame(HEADERS, END_HEADERS, stream, &block),
                &empty,
                &half,
                &empty,
                &frame(DATA, END_STREAM, stream, rest),
            ])
        }
        7 => whole(&[&usual, &data, &frame(DATA, END_STREAM, stream, b"more")]),
        8 => whole(&[&usual, &frame(DATA, END_STREAM, 0, body), &data]),
        9 => whole(&[&usual, &frame(DATA, END_STREAM, stream + 8, body), &data]),
        10 => whole(&[&frame(HEADERS, END_HEADERS | end, stream + 1, &block), &data]),
        11 => whole(&[&usual, &usual, &data]),
        12 => {
            let names = [
                (":path", "/x"),
                (":status", "200"),
                ("content-length", "0"),
                ("X", "y"),
                ("te", "x"),
                ("transfer-encoding", "chunked"),
            ];
            let trailer = *names.get(dice.roll(names.len())).unwrap();
            let flags = if dice.one_in(3) { END_HEADERS } else { END_HEADERS | END_STREAM };
            let opened = frame(HEADERS, END_HEADERS, stream, &block);
            whole(&[
                &opened,
                &frame(DATA, 0, stream, body),
                &frame(HEADERS, flags, stream, &self::block(&[trailer])),
            ])
        }
        13 => {
            let code = u32::try_from(dice.roll(14)).unwrap().to_be_bytes();
            whole(&[
                &frame(HEADERS, END_HEADERS, stream, &block),
                &half,
                &frame(RST_STREAM, 0, stream, &code),
            ])
        }
        14 => whole(&[&usual, &frame(WINDOW_UPDATE, 0, stream, &[0; 4]), &data]),
        15 => whole(&[&usual, &frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), &data]),
        16 => {
            let settings =
                [&[0, 4, 0x80, 0, 0, 0][..], &[0, 5, 0, 0, 0, 1], &[0, 2, 0, 0, 0, 9], &[0, 1]];
            let settings = settings.get(dice.roll(settings.len())).unwrap();
            whole(&[&usual, &frame(SETTINGS, 0, 0, settings), &data])
        }
        17 => whole(&[&usual, &frame(SETTINGS, 1, 0, &[0; 6]), &data]),
        18 => whole(&[&usual, &frame(0x7e, 0xff, stream, b"unknown"), &data]),
        19 => whole(&[
            &usual,
            &frame(PUSH_PROMISE, END_HEADERS, stream, &[&[0, 0, 0, 2][..], &block].concat()),
            &data,
        ]),
        20 => whole(&[&usual, &frame(PING, 0, 0, &[0; 7]), &data]),
        21 => {
            let odd = [
                &[0x80][..],
                &[0xbe],
                &[0x3f, 0xff, 0xff, 0x7f],
                &[0x20],
                &[0x00, 0x81, 0xff, 0x01, b'x'],
            ];
            let odd = odd.get(dice.roll(odd.len())).unwrap();
            whole(&[&frame(HEADERS, END_HEADERS | end, stream, &[odd, &block[..]].concat()), &data])
        }
        22 => whole(&[
            &usual,
            &frame(PRIORITY, 0, stream, &[0; 5]),
            &data,
            &frame(GOAWAY, 0, 0, &[0; 8]),
        ]),
        // The end of the body never comes.
        _ => whole(&[&frame(HEADERS, END_HEADERS, stream, &block), &half]),
    }
}
