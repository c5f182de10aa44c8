//! Headers: from Envoy's messages, and back as the changes that Envoy makes to its own.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, Uri};

use crate::messages::{
    BoolValue, HeaderLine, HeaderLineOption, HeaderLines, HeaderMutation, HttpHeaders, HttpTrailers,
};

/// The beginning of the headers that belong to Envoy. They are no part of an outcome.
const ENVOYS_OWN: &str = "x-envoy-";

/// The retries that Envoy may make of a request. Envoy removes the header before it forwards the
/// request.
const MAX_RETRIES: HeaderName = HeaderName::from_static("x-envoy-max-retries");
/// Whether Envoy sends a second request while the first one runs.
const HEDGE: HeaderName = HeaderName::from_static("x-envoy-hedge-on-per-try-timeout");

/// The reason why a head of Envoy cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UnreadableHead(&'static str);

/// The head of a request.
pub(crate) struct RequestHead {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
}

/// Reads the head of a request.
pub(crate) fn request_head(head: &HttpHeaders) -> Result<RequestHead, UnreadableHead> {
    let (pseudo, mut headers) = read(head.headers.as_ref())?;
    let found = |name: &str| pseudo.iter().find(|(known, _)| known == name).map(|(_, value)| value);
    let method = found(":method").and_then(|value| Method::from_bytes(value).ok());
    let method = method.ok_or(UnreadableHead("The method cannot be read."))?;
    let path = found(":path").map_or(&b"/"[..], |path| path);
    let uri = Uri::try_from(path).map_err(|_| UnreadableHead("The path cannot be read."))?;
    if let Some(authority) = found(":authority") {
        let host = HeaderValue::from_bytes(authority);
        headers.insert(HOST, host.map_err(|_| UnreadableHead("The host cannot be read."))?);
    }
    Ok(RequestHead { method, uri, headers })
}

/// Reads the head of a response.
pub(crate) fn response_head(head: &HttpHeaders) -> Result<(StatusCode, HeaderMap), UnreadableHead> {
    let (pseudo, headers) = read(head.headers.as_ref())?;
    let status = pseudo.iter().find(|(name, _)| name == ":status");
    let status = status.and_then(|(_, value)| StatusCode::from_bytes(value).ok());
    Ok((status.ok_or(UnreadableHead("The status cannot be read."))?, headers))
}

type PseudoHeaders = Vec<(String, Bytes)>;

fn read(lines: Option<&HeaderLines>) -> Result<(PseudoHeaders, HeaderMap), UnreadableHead> {
    let (mut pseudo, mut headers) = (Vec::new(), HeaderMap::new());
    for HeaderLine { key, value, raw_value } in lines.iter().flat_map(|lines| &lines.headers) {
        // Envoy writes `raw_value`; older ones wrote `value`.
        let value = match raw_value.is_empty() {
            true => Bytes::copy_from_slice(value.as_bytes()),
            false => raw_value.clone(),
        };
        if key.starts_with(':') {
            pseudo.push((key.clone(), value));
            continue;
        }
        let name = HeaderName::from_bytes(key.as_bytes());
        let value = HeaderValue::from_maybe_shared(value);
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(UnreadableHead("A header cannot be read."));
        };
        headers.append(name, value);
    }
    Ok((pseudo, headers))
}

/// Removes Envoy's own headers of a response.
pub(crate) fn remove_envoys_own(headers: &mut HeaderMap) {
    let own: Vec<HeaderName> = headers.keys().filter(|name| is_envoys(name)).cloned().collect();
    for name in own {
        headers.remove(name);
    }
}

fn is_envoys(name: &HeaderName) -> bool {
    name.as_str().starts_with(ENVOYS_OWN)
}

/// Returns the changes that turn the headers that Envoy has into other headers. Envoy's own headers
/// stay as they are.
pub(crate) fn difference(has: &HeaderMap, wanted: &HeaderMap) -> HeaderMutation {
    let mut mutation = HeaderMutation::default();
    for name in has.keys().filter(|name| !is_envoys(name)) {
        if !wanted.contains_key(name) {
            mutation.remove_headers.push(name.as_str().to_owned());
        }
    }
    for name in wanted.keys().filter(|name| !is_envoys(name)) {
        if !has.get_all(name).iter().eq(wanted.get_all(name)) {
            set(&mut mutation, name, wanted);
        }
    }
    mutation
}

/// Forbids Envoy to send a request of an attempt twice. Its retries and hedges are made behind the
/// filter, so both requests would have the same fence.
pub(crate) fn forbid_retries(mutation: &mut HeaderMutation) {
    mutation.set_headers.push(line(&MAX_RETRIES, &HeaderValue::from_static("0"), true));
    mutation.set_headers.push(line(&HEDGE, &HeaderValue::from_static("false"), true));
}

/// Returns the changes of the headers of a response that Envoy makes itself. Envoy sets the length,
/// and a content type unless it is removed.
pub(crate) fn immediate(wanted: &HeaderMap) -> HeaderMutation {
    let mut mutation = HeaderMutation::default();
    if !wanted.contains_key(CONTENT_TYPE) {
        mutation.remove_headers.push(CONTENT_TYPE.as_str().to_owned());
    }
    for name in wanted.keys().filter(|name| **name != CONTENT_LENGTH) {
        set(&mut mutation, name, wanted);
    }
    mutation
}

/// Returns the head of a response that Envoy sends as it is.
pub(crate) fn streamed_head(status: StatusCode, headers: &HeaderMap) -> HeaderLines {
    let mut lines = joined_lines(headers);
    let status = Bytes::copy_from_slice(status.as_str().as_bytes());
    let status = HeaderLine { key: ":status".to_owned(), value: String::new(), raw_value: status };
    lines.headers.insert(0, status);
    lines
}

/// Returns the headers or trailers of a response that Envoy sends as it is. Envoy keeps only the
/// last line of a name, so the values of a name are joined: to gRPC that is the same.
pub(crate) fn joined_lines(headers: &HeaderMap) -> HeaderLines {
    let lines = headers.keys().map(|name| {
        let values: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        let raw_value = values.join(&b","[..]).into();
        HeaderLine { key: name.as_str().to_owned(), value: String::new(), raw_value }
    });
    HeaderLines { headers: lines.collect() }
}

/// Reads trailers.
pub(crate) fn trailers_of(trailers: &HttpTrailers) -> Result<HeaderMap, UnreadableHead> {
    read(trailers.trailers.as_ref()).map(|(_, trailers)| trailers)
}

/// Sets all lines of a header: the first replaces those that are there, the others are added.
fn set(mutation: &mut HeaderMutation, name: &HeaderName, wanted: &HeaderMap) {
    for (nth, value) in wanted.get_all(name).iter().enumerate() {
        mutation.set_headers.push(line(name, value, nth == 0));
    }
}

fn line(name: &HeaderName, value: &HeaderValue, is_first: bool) -> HeaderLineOption {
    let raw_value = Bytes::copy_from_slice(value.as_bytes());
    let header = HeaderLine { key: name.as_str().to_owned(), value: String::new(), raw_value };
    let append = Some(BoolValue { value: !is_first });
    HeaderLineOption { header: Some(header), append, keep_empty_value: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    /// The headers after Envoy applied the changes: it removes first, and sets in order.
    fn applied(mut headers: HeaderMap, mutation: &HeaderMutation) -> HeaderMap {
        for name in &mutation.remove_headers {
            headers.remove(name);
        }
        for option in &mutation.set_headers {
            let header = option.header.clone().unwrap();
            let name: HeaderName = header.key.parse().unwrap();
            let value = HeaderValue::from_maybe_shared(header.raw_value).unwrap();
            match option.append.as_ref().unwrap().value {
                false => drop(headers.insert(name, value)),
                true => drop(headers.append(name, value)),
            }
        }
        headers
    }

    #[test]
    fn the_difference_leads_to_the_wanted_headers() {
        let has = headers(&[("a", "1"), ("b", "1"), ("b", "2"), ("c", ""), ("x-envoy-d", "1")]);
        for wanted in [
            headers(&[]),
            headers(&[("a", "1")]),
            headers(&[("a", "2"), ("b", "2"), ("b", "1"), ("e", "")]),
            headers(&[("b", "1"), ("b", "2"), ("b", "3"), ("c", "")]),
        ] {
            let mut wanted_with_envoys = wanted.clone();
            wanted_with_envoys.insert("x-envoy-d", HeaderValue::from_static("1"));
            let mutation = difference(&has, &wanted);
            assert_eq!(applied(has.clone(), &mutation), wanted_with_envoys);
        }
        assert_eq!(difference(&has, &has), HeaderMutation::default());
    }

    #[test]
    fn heads_are_read_with_their_pseudo_headers() {
        let line = |key: &str, value: &'static str| HeaderLine {
            key: key.to_owned(),
            value: String::new(),
            raw_value: Bytes::from_static(value.as_bytes()),
        };
        let head = |lines: Vec<HeaderLine>| HttpHeaders {
            headers: Some(HeaderLines { headers: lines }),
            end_of_stream: false,
        };
        let read = request_head(&head(vec![
            line(":method", "POST"),
            line(":path", "/charges?a=1"),
            line(":authority", "shop"),
            line("b", "1"),
            line("b", "2"),
        ]));
        let read = read.unwrap();
        assert_eq!((read.method, read.uri.path()), (Method::POST, "/charges"));
        assert_eq!(read.headers, headers(&[("host", "shop"), ("b", "1"), ("b", "2")]));
        for bad in [
            vec![line(":path", "/")],
            vec![line(":method", "POST"), line(":path", "no path")],
            vec![line(":method", "POST"), line(":path", "/"), line("a b", "1")],
            vec![line(":method", "POST"), line(":path", "/"), line("a", "1\n2")],
        ] {
            assert!(request_head(&head(bad)).is_err());
        }
        assert_eq!(response_head(&head(vec![line(":status", "201")])).unwrap().0, 201);
        assert!(response_head(&head(vec![line(":status", "x")])).is_err());
    }

    #[test]
    fn the_values_of_a_name_are_one_line_in_a_streamed_answer() {
        let sent = headers(&[("x-cost", "7"), ("x-part", "a"), ("x-part", "b"), ("x-empty", "")]);
        let mut lines: Vec<_> = streamed_head(StatusCode::OK, &sent).headers;
        let first = lines.remove(0);
        assert_eq!((first.key.as_str(), &first.raw_value[..]), (":status", &b"200"[..]));
        let trailers = HttpTrailers { trailers: Some(HeaderLines { headers: lines }) };
        let read = trailers_of(&trailers).unwrap();
        assert_eq!(read, headers(&[("x-cost", "7"), ("x-part", "a,b"), ("x-empty", "")]));
    }
}
