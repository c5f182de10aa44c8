//! Timeouts of a client connection, as one pure function of what is known about it.

use std::time::Duration;

/// How long a new connection may take for its first request if the gateway stops meanwhile.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// How long a peer may take to take note of the end of an idle connection.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// The longest time for which the body of a request is waited for after its response. The upload has
/// limits of its own, which end it earlier. This one is for an upload that hyper keeps although they
/// ended it.
const UNREAD_MAX: Duration = Duration::from_secs(340);
/// How long a peer may accept nothing of a response, or send nothing of the rest of its request, if
/// the gateway stops meanwhile.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long a lingering connection waits for the next byte.
const LINGER_QUIET_MAX: Duration = Duration::from_secs(2);
/// How long a connection lingers at most.
const LINGER_MAX: Duration = Duration::from_secs(30);
/// How long a connection is idle before it is parked.
const PARK_AFTER: Duration = Duration::from_secs(1);
/// Pause between two looks at a connection that has no timeout.
const CHECK: Duration = Duration::from_secs(15);
/// The same if the gateway stops.
const CHECK_AT_STOP: Duration = Duration::from_secs(1);

/// The configured timeouts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// How long an idle connection is kept.
    pub(super) keep_alive: Duration,
    /// Timeout for the head of an HTTP/1.1 request, from its first byte.
    pub(super) head: Duration,
    /// How long a peer may accept nothing of what is sent to it. Over HTTP/2: nothing of one response.
    pub(super) send: Duration,
}

/// The state of a connection. Times are of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) opened: Duration,
    /// Nothing is in progress, and the connection is not parked yet.
    pub(super) can_park: bool,
    /// A request has no response yet.
    pub(super) is_running: bool,
    /// A response is not complete, or not flushed.
    pub(super) is_sending: bool,
    /// The body of a request is still unread. Its response may have ended.
    pub(super) has_unread: bool,
    /// The end of the last response, or of its request if that came later.
    pub(super) answered_at: Option<Duration>,
    /// When the peer was last seen to have accepted a byte.
    pub(super) accepted_at: Duration,
    /// When the peer was last seen to have sent a byte.
    pub(super) received_at: Duration,
    /// When the peer was first seen to accept no more.
    pub(super) blocked_since: Option<Duration>,
    /// Since when a response over HTTP/2 has waited for the peer to make room for its next part.
    pub(super) offered_since: Option<Duration>,
    /// When a head began to arrive.
    pub(super) head_since: Option<Duration>,
    /// When the gateway began to stop.
    pub(super) stopping_since: Option<Duration>,
    /// When this side asked for the end of the connection.
    pub(super) closing_since: Option<Duration>,
    /// When this side began to end the connection. Over TLS, the end waits behind all that the peer
    /// has not accepted yet.
    pub(super) ending_since: Option<Duration>,
    /// When this side ended the connection.
    pub(super) lingers_since: Option<Duration>,
    /// When a lingering connection was last seen to discard something, or to be refused.
    pub(super) discarded_at: Option<Duration>,
}

impl Known {
    /// Since when the peer has accepted nothing of what is sent to it, or of one of its responses.
    fn silent_since(&self) -> Option<Duration> {
        let blocked_since = self.blocked_since.map(|since| since.max(self.accepted_at));
        blocked_since.into_iter().chain(self.offered_since).min()
    }

    /// When the connection can be parked, if it can.
    pub(super) fn park_at(&self) -> Option<Duration> {
        self.answered_at.filter(|_| self.can_park).map(|answered_at| answered_at + PARK_AFTER)
    }
}

/// The next step with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Look again at this time, if nothing happens before.
    WaitUntil(Duration),
    /// Drop the state of HTTP until the next byte arrives.
    Park,
    /// End it in order.
    Close,
    /// Drop it: both sides are done with it.
    Drop,
    /// End it at once.
    Cut(CutReason),
}

impl Step {
    /// The same step, and a look at this time at the latest.
    fn not_after(self, at: Duration) -> Self {
        match self {
            Self::WaitUntil(until) => Self::WaitUntil(until.min(at)),
            step => step,
        }
    }
}

/// The reason for the end of a connection that was not ended in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutReason {
    /// The head of a request did not arrive in time.
    Head,
    /// The peer did not end its side after the gateway had ended its own.
    Linger,
    /// The peer accepts nothing for too long. If the gateway stops, that is a short time.
    Silence,
}

impl CutReason {
    pub(super) const ALL: [Self; 3] = [Self::Head, Self::Linger, Self::Silence];

    /// The value of the metric's label.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Linger => "linger",
            Self::Silence => "silence",
        }
    }
}

/// Decides the next step with a connection.
pub(super) fn next_step(known: &Known, timeouts: Timeouts, now: Duration) -> Step {
    let cut_at = |until: Duration, reason| match until > now {
        true => Step::WaitUntil(until),
        false => Step::Cut(reason),
    };
    if let Some(since) = known.lingers_since {
        let quiet_since = known.discarded_at.max(known.answered_at).unwrap_or_default();
        let until = (since + LINGER_MAX).min(quiet_since + LINGER_QUIET_MAX);
        // A peer that has had its last response for a while needs no more time to read it.
        return if until <= since { Step::Drop } else { cut_at(until, CutReason::Linger) };
    }
    let silent_until = known.silent_since().map(|since| since + timeouts.send);
    if silent_until.is_some_and(|until| until <= now) {
        return Step::Cut(CutReason::Silence);
    }
    let check_at = now + if known.stopping_since.is_some() { CHECK_AT_STOP } else { CHECK };
    let check_at = silent_until.map_or(check_at, |until| until.min(check_at));
    if known.is_running {
        return Step::WaitUntil(check_at);
    }
    let cut_or_check = |until: Duration| cut_at(until, CutReason::Silence).not_after(check_at);
    if known.is_sending {
        return match (known.stopping_since, known.silent_since()) {
            (Some(stopping), Some(silent)) => cut_or_check(stopping.max(silent) + SILENCE_MAX),
            // The peer waits for the response, and that waits for its operation.
            _ => Step::WaitUntil(check_at),
        };
    }
    if known.has_unread {
        return match (known.stopping_since, known.answered_at) {
            (Some(stopping), _) => {
                let moved_at = known.accepted_at.max(known.received_at);
                cut_or_check(stopping.max(moved_at) + SILENCE_MAX)
            }
            (None, Some(answered_at)) => cut_or_check(answered_at + UNREAD_MAX),
            (None, None) => Step::WaitUntil(check_at),
        };
    }
    if let Some(since) = known.head_since.filter(|_| known.ending_since.is_none()) {
        // Behind a response that was on its way, a head is read late.
        let since = since.max(known.answered_at.unwrap_or_default());
        return cut_at(since + timeouts.head, CutReason::Head);
    }
    if let Some(since) = known.closing_since {
        // The end of the last response may still be on its way.
        let since = since.max(known.accepted_at).max(known.answered_at.unwrap_or_default());
        return cut_at(since + CLOSE_MAX, CutReason::Silence);
    }
    if let Some(since) = known.ending_since.filter(|_| known.stopping_since.is_none()) {
        return cut_at(since.max(known.accepted_at) + timeouts.send, CutReason::Silence);
    }
    let until = match (known.stopping_since, known.answered_at) {
        (None, answered_at) => answered_at.unwrap_or(known.opened) + timeouts.keep_alive,
        (Some(_), None) => known.opened + FIRST_REQUEST,
        (Some(_), Some(_)) => now,
    };
    if until <= now {
        return Step::Close;
    }
    match known.park_at() {
        Some(park_at) if park_at <= now => Step::Park,
        park_at => Step::WaitUntil(park_at.map_or(until, |park_at| park_at.min(until))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    const TIMEOUTS: Timeouts = Timeouts { keep_alive: secs(75), head: secs(15), send: secs(60) };
    /// A connection that was opened at 100 seconds.
    const NEW: Known = Known {
        opened: secs(100),
        can_park: false,
        is_running: false,
        is_sending: false,
        has_unread: false,
        answered_at: None,
        accepted_at: secs(100),
        received_at: secs(100),
        blocked_since: None,
        offered_since: None,
        head_since: None,
        stopping_since: None,
        closing_since: None,
        ending_since: None,
        lingers_since: None,
        discarded_at: None,
    };

    /// The last time at which the connection is waited for, and what follows.
    fn end(known: Known) -> (u64, Step) {
        for at in 100..1000 {
            match next_step(&known, TIMEOUTS, secs(at)) {
                Step::WaitUntil(until) => assert!(until > secs(at), "{known:?}"),
                step => return (at, step),
            }
        }
        (u64::MAX, Step::WaitUntil(Duration::MAX))
    }

    const FOREVER: (u64, Step) = (u64::MAX, Step::WaitUntil(Duration::MAX));

    #[test]
    fn an_idle_connection_is_kept_for_keep_alive() {
        assert_eq!(end(NEW), (175, Step::Close));
        let answered = Known { answered_at: Some(secs(150)), ..NEW };
        assert_eq!(end(answered), (225, Step::Close));
        assert_eq!(end(Known { is_running: true, ..answered }), FOREVER);
        assert_eq!(end(Known { is_sending: true, ..answered }), FOREVER);
        let unread = Known { has_unread: true, ..answered };
        assert_eq!(end(unread), (490, Step::Cut(CutReason::Silence)), "its request goes on");
        assert_eq!(end(Known { is_sending: true, ..unread }), FOREVER);
    }

    #[test]
    fn an_idle_connection_is_parked_and_ends_at_the_same_time() {
        let idle = Known { answered_at: Some(secs(150)), can_park: true, ..NEW };
        assert_eq!(end(idle), (151, Step::Park));
        assert_eq!(end(Known { can_park: false, ..idle }), (225, Step::Close), "it is parked");
        assert_eq!(end(Known { answered_at: None, ..idle }), (175, Step::Close), "nothing to drop");
        let stopping = Known { stopping_since: Some(secs(150)), ..idle };
        assert_eq!(end(stopping), (100, Step::Close), "the end comes first");
        let at_once = Timeouts { keep_alive: secs(1), ..TIMEOUTS };
        assert_eq!(next_step(&idle, at_once, secs(151)), Step::Close);
        assert_eq!(next_step(&idle, TIMEOUTS, secs(150)), Step::WaitUntil(secs(151)));
    }

    #[test]
    fn a_head_has_a_timeout_of_its_own() {
        let head = Known { head_since: Some(secs(120)), ..NEW };
        assert_eq!(end(head), (135, Step::Cut(CutReason::Head)));
        let stopping =
            Known { stopping_since: Some(secs(121)), closing_since: Some(secs(121)), ..head };
        assert_eq!(end(stopping), (135, Step::Cut(CutReason::Head)));
        let behind = Known { answered_at: Some(secs(140)), ..head };
        assert_eq!(end(behind), (155, Step::Cut(CutReason::Head)), "it could not be read before");
    }

    #[test]
    fn idle_peers_do_not_delay_the_end() {
        let stopping = Known { stopping_since: Some(secs(150)), ..NEW };
        assert_eq!(end(stopping), (101, Step::Close), "it is no new connection any more");
        let answered = Known { answered_at: Some(secs(149)), ..stopping };
        assert_eq!(end(answered), (100, Step::Close), "at once");
        let closing = Known { closing_since: Some(secs(150)), ..answered };
        assert_eq!(end(closing), (152, Step::Cut(CutReason::Silence)));
        let written = Known { accepted_at: secs(158), ..closing };
        assert_eq!(end(written), (160, Step::Cut(CutReason::Silence)), "it still reads");
    }

    #[test]
    fn a_peer_that_does_not_accept_the_end_is_cut_off() {
        let ending = Known { answered_at: Some(secs(150)), ending_since: Some(secs(150)), ..NEW };
        assert_eq!(end(ending), (210, Step::Cut(CutReason::Silence)));
        let head = Known { head_since: Some(secs(149)), ..ending };
        assert_eq!(end(head), (210, Step::Cut(CutReason::Silence)), "it is not waited for");
        let stopping = Known { stopping_since: Some(secs(160)), ..ending };
        assert_eq!(end(stopping), (100, Step::Close));
        let closing = Known { closing_since: Some(secs(160)), ..stopping };
        assert_eq!(end(closing), (162, Step::Cut(CutReason::Silence)));
    }

    #[test]
    fn silent_peers_do_not_delay_the_end_for_long() {
        let waiting = Known { is_sending: true, stopping_since: Some(secs(150)), ..NEW };
        assert_eq!(end(waiting), FOREVER, "the peer waits for its response");
        assert_eq!(end(Known { has_unread: true, ..waiting }), FOREVER, "it may send meanwhile");
        let blocked = Known { blocked_since: Some(secs(145)), ..waiting };
        assert_eq!(end(blocked), (155, Step::Cut(CutReason::Silence)));
        let reading = Known { accepted_at: secs(160), ..blocked };
        assert_eq!(end(reading), (165, Step::Cut(CutReason::Silence)));
        let offered = Known { offered_since: Some(secs(145)), ..waiting };
        assert_eq!(end(offered), (155, Step::Cut(CutReason::Silence)));
        let running = Known { is_running: true, ..blocked };
        assert_eq!(end(running), (205, Step::Cut(CutReason::Silence)), "the operation may end");
        // The rest of a request is waited for alike.
        let uploads = Known { is_sending: false, has_unread: true, ..waiting };
        assert_eq!(end(uploads), (155, Step::Cut(CutReason::Silence)));
        let sends = Known { received_at: secs(160), ..uploads };
        assert_eq!(end(sends), (165, Step::Cut(CutReason::Silence)));
    }

    #[test]
    fn a_peer_that_accepts_nothing_is_cut_off() {
        let blocked = Known { is_sending: true, blocked_since: Some(secs(150)), ..NEW };
        assert_eq!(end(blocked), (210, Step::Cut(CutReason::Silence)));
        let running = Known { is_running: true, is_sending: false, ..blocked };
        assert_eq!(end(running), (210, Step::Cut(CutReason::Silence)), "the operation goes on");
        let slow = Known { accepted_at: secs(190), ..blocked };
        assert_eq!(end(slow), (250, Step::Cut(CutReason::Silence)), "it reads");
        let sends = Known { received_at: secs(190), ..blocked };
        assert_eq!(end(sends), (210, Step::Cut(CutReason::Silence)), "it sends, and does not read");
        // Pings and other responses move, and this response does not.
        let offered = Known { blocked_since: None, offered_since: Some(secs(150)), ..slow };
        assert_eq!(end(offered), (210, Step::Cut(CutReason::Silence)));
        let both = Known { blocked_since: Some(secs(140)), ..offered };
        assert_eq!(end(both), (210, Step::Cut(CutReason::Silence)));
        let stopping = Known { stopping_since: Some(secs(160)), ..blocked };
        assert_eq!(end(stopping), (165, Step::Cut(CutReason::Silence)));
        assert_eq!(
            end(Known { blocked_since: None, ..blocked }),
            FOREVER,
            "there is no more to send"
        );
    }

    #[test]
    fn a_connection_lingers_for_a_bounded_time() {
        let lingers = Known { lingers_since: Some(secs(150)), ..NEW };
        assert_eq!(end(lingers), (100, Step::Drop), "nothing to be lost");
        let idle = Known { answered_at: Some(secs(148)), ..lingers };
        assert_eq!(end(idle), (100, Step::Drop), "it has had its response for long enough");
        let answered = Known { answered_at: Some(secs(150)), ..lingers };
        assert_eq!(end(answered), (152, Step::Cut(CutReason::Linger)));
        let sending = Known { discarded_at: Some(secs(155)), ..answered };
        assert_eq!(end(sending), (157, Step::Cut(CutReason::Linger)));
        let endless = Known { discarded_at: Some(secs(999)), ..answered };
        assert_eq!(end(endless), (180, Step::Cut(CutReason::Linger)));
    }
}
