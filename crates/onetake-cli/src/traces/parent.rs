//! W3C Trace Context: the trace of a request, and the header for the upstream.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry::{Context, ContextGuard};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::export::is_exporting;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The client's span that a request belongs to, if it has one.
pub(crate) struct Parent(Option<Context>);

impl Parent {
    /// Reads the parent span from the headers. While traces are exported, the upstream gets our
    /// span as its parent. So headers that cannot be parsed are removed, and the request starts a
    /// new trace.
    pub(crate) fn take(headers: &mut HeaderMap) -> Self {
        if !is_exporting() {
            return Self(None);
        }
        let parent = parent(headers);
        if parent.is_none() {
            headers.remove(TRACEPARENT);
            headers.remove(TRACESTATE);
        }
        Self(parent.map(|parent| Context::new().with_remote_span_context(parent)))
    }

    /// Calls `call`. Spans that it starts become children of the parent.
    pub(crate) fn around<T>(self, call: impl FnOnce() -> T) -> T {
        let _attached: Option<ContextGuard> = self.0.map(Context::attach);
        call()
    }
}

/// Sets `traceparent` for the upstream to our span. `tracestate` stays as the client sent it.
pub(crate) fn pass_on(span: &Span, headers: &mut HeaderMap) {
    if !is_exporting() {
        return;
    }
    let context = span.context();
    let span = context.span();
    let ours = span.span_context();
    if !ours.is_valid() {
        return;
    }
    let flags = ours.trace_flags() & TraceFlags::SAMPLED;
    let text = format!("00-{}-{}-{flags:02x}", ours.trace_id(), ours.span_id());
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.insert(TRACEPARENT, value);
    }
}

fn parent(headers: &HeaderMap) -> Option<SpanContext> {
    let mut lines = headers.get_all(TRACEPARENT).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return None;
    };
    let (trace_id, span_id, flags) = traceparent(line.to_str().ok()?)?;
    let states: Vec<&str> =
        headers.get_all(TRACESTATE).iter().filter_map(|line| line.to_str().ok()).collect();
    let state: TraceState = states.join(",").parse().unwrap_or_default();
    Some(SpanContext::new(trace_id, span_id, flags, true, state))
}

/// Parses `version-trace-span-flags` as strictly as the standard asks. Versions after 00 may have
/// more fields.
fn traceparent(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (head, more) = text.split_at_checked(55)?;
    let [version, trace_id, span_id, flags] =
        head.split('-').collect::<Vec<_>>().try_into().ok()?;
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_whole = more.is_empty() || (version != "00" && more.starts_with('-'));
    let is_known = is_hex(version, 2) && version != "ff" && is_whole;
    if !is_known || !is_hex(trace_id, 32) || !is_hex(span_id, 16) || !is_hex(flags, 2) {
        return None;
    }
    let trace_id = TraceId::from_hex(trace_id).ok().filter(|id| *id != TraceId::INVALID)?;
    let span_id = SpanId::from_hex(span_id).ok().filter(|id| *id != SpanId::INVALID)?;
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    Some((trace_id, span_id, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_traceparent_is_read_as_the_standard_says() {
        for (text, sampled) in [
            (format!("00-{TRACE}-{SPAN}-00"), false),
            (format!("00-{TRACE}-{SPAN}-01"), true),
            (format!("00-{TRACE}-{SPAN}-03"), true),
            (format!("cc-{TRACE}-{SPAN}-01"), true),
            (format!("cc-{TRACE}-{SPAN}-01-what-the-future-brings"), true),
        ] {
            let (trace_id, span_id, flags) = traceparent(&text).unwrap();
            assert_eq!((trace_id.to_string(), span_id.to_string()), (TRACE.into(), SPAN.into()));
            assert_eq!(flags.is_sampled(), sampled, "{text}");
        }
        let zeros = "0".repeat(32);
        for bad in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-01."),
            format!("cc-{TRACE}-{SPAN}-01.what"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-001"),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-+{}-{SPAN}-01", TRACE.split_at(1).1),
            format!("00-{}-{SPAN}-01", "é".repeat(16)),
            format!(" 00-{TRACE}-{SPAN}-01"),
        ] {
            assert!(traceparent(&bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn two_parents_are_none() {
        let mut headers = HeaderMap::new();
        let line = HeaderValue::from_str(&format!("00-{TRACE}-{SPAN}-01")).unwrap();
        headers.append(TRACEPARENT, line.clone());
        headers.append(TRACESTATE, HeaderValue::from_static("a=1"));
        headers.append(TRACESTATE, HeaderValue::from_static("b=2"));
        assert_eq!(parent(&headers).unwrap().trace_state().header(), "a=1,b=2");
        headers.append(TRACEPARENT, line);
        assert!(parent(&headers).is_none());
    }
}
