//! `[limits]`: the limits of the gateway on connections, requests and memory.

use std::time::Duration;

use super::form::{duration, integer, size};
use super::table::table;

table! {
    /// `[limits]`
    pub struct Limits [Clone, Debug, PartialEq, Eq] ("[limits]", "[limits]") {
        /// The most client connections. A further one gets the place of an idle one, or waits in the
        /// queue of the operating system.
        max_connections: usize = integer(1, 1_000_000).or("16384"),
        /// The most concurrent streams of one HTTP/2 connection.
        max_streams: usize = integer(1, 65_535).or("256"),
        /// The most header lines of one request.
        max_headers: usize = integer(16, 4_096).or("100"),
        /// The largest head of one request: target and headers.
        max_header_bytes: usize = size("8KiB", "1MiB").or("\"64KiB\""),
        /// The longest time in which the head of a request arrives.
        header_timeout: Duration = duration("100ms", "10m", "15s").or("\"15s\""),
        /// The longest time for which a client accepts nothing of a response. Then its connection is
        /// cut off.
        send_timeout: Duration = duration("100ms", "1h", "60s").or("\"60s\""),
        /// The most requests in flight, keyed and unkeyed, from the head of the request to the end
        /// of the response.
        max_requests: usize = integer(1, 1_000_000).or("16384"),
        /// The most requests in flight on one connection.
        max_requests_per_connection: usize = integer(1, 65_535).or("256"),
        /// The most requests in flight to one upstream.
        max_requests_per_upstream: usize = integer(1, 1_000_000).or("8192"),
        /// The most keyed operations that run at once. One more gets a 503 without waiting. Requests
        /// that wait for another attempt do not count.
        max_operations: usize = integer(1, 1_000_000).or("10000"),
        /// The most requests that wait for one limit: for `max_requests` or
        /// `max_requests_per_connection`, for `max_requests_per_upstream`, or for a socket to an
        /// upstream (open files). One more gets a 503.
        max_queued_requests: usize = integer(0, 1_000_000).or("1024"),
        /// The longest time for which a request waits in such a queue. Then it gets a 503.
        queue_timeout: Duration = duration("1ms", "1m", "1s").or("\"1s\""),
        /// The most memory for keyed requests: the bytes that have arrived, until the outcome is
        /// recorded. At least twice the largest `max_request_body`.
        max_body_memory: usize = size("1MiB", "1024GiB").or("\"256MiB\""),
        /// The most memory for responses to keyed requests that their clients have not read. At
        /// least twice the largest `max_response_body`.
        max_response_memory: usize = size("1MiB", "1024GiB").or("\"256MiB\""),
        /// The least rate at which the body of a keyed request arrives, in bytes per second and
        /// after five seconds. A slower body gets a 408. 0 turns it off.
        min_body_rate: usize = integer(0, 1_000_000).or("240"),
        /// The memory of the embedded store: half for blocks of its tables, half for writes that
        /// are not in tables yet.
        max_store_memory: usize = size("8MiB", "64GiB").or("\"128MiB\""),
    }
}
