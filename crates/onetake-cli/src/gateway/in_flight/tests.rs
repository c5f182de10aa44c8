//! Tests of the gates.

use futures_util::FutureExt;
use onetake_core::{ManualClock, Timestamp};
use tokio::sync::Semaphore;

use super::*;

struct World {
    clock: ManualClock,
    gates: Arc<Gates>,
    places: Arc<Semaphore>,
}

impl World {
    fn new(requests_max: usize, requests_per_connection_max: usize, queue_max: usize) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(1));
        let limits = GateLimits {
            requests_max,
            requests_per_connection_max,
            upstream_sockets_max: 8,
            requests_per_upstream_max: 4,
            queue_max,
            queue_timeout: Duration::from_secs(1),
        };
        let gates = Gates::new(limits, 2, Arc::new(clock.clone()));
        Self { clock, gates, places: Arc::new(Semaphore::new(1_000)) }
    }

    fn connection(&self) -> Arc<Connection> {
        let place = Arc::clone(&self.places).try_acquire_owned().unwrap();
        Connection::new(place, &self.gates)
    }
}

/// A connection with permits for a few requests.
pub(crate) fn connection_of_tests() -> Arc<Connection> {
    World::new(8, 8, 8).connection()
}

/// Takes permits until there is none.
fn fill(connection: &Arc<Connection>, gate: usize) -> Vec<Permit> {
    std::iter::from_fn(|| connection.try_enter(gate)).collect()
}

#[test]
fn one_connection_gets_no_more_than_its_share() {
    let world = World::new(300, 256, 0);
    let first = fill(&world.connection(), REQUESTS);
    assert!((80..110).contains(&first.len()), "about a third: {}", first.len());
    let hogs: Vec<_> = (0..30).map(|_| fill(&world.connection(), REQUESTS)).collect();
    assert!(hogs.iter().all(|permits| !permits.is_empty()), "each gets something");
    assert!(world.connection().try_enter(REQUESTS).is_some(), "and so does the next one");
    assert_eq!(fill(&world.connection(), Gates::of_upstream(1)).len(), 2);
    drop((first, hogs));
    assert_eq!(world.gates.in_flight(), 0);
    let narrow = World::new(300, 5, 0);
    assert_eq!(fill(&narrow.connection(), REQUESTS).len(), 5);
    let one = World::new(1, 256, 0);
    assert_eq!(fill(&one.connection(), REQUESTS).len(), 1, "a limit of one is one");
}

#[tokio::test]
async fn requests_wait_for_a_permit_in_their_order() {
    let world = World::new(1, 256, 10);
    let [first, second, third] = [(); 3].map(|()| world.connection());
    let held = first.enter(REQUESTS).await.unwrap();
    let mut two = Box::pin(second.enter(REQUESTS));
    let mut three = Box::pin(third.enter(REQUESTS));
    assert!((&mut two).now_or_never().is_none() && (&mut three).now_or_never().is_none());
    assert_eq!(world.gates.queued(), 2);
    drop(held);
    assert!((&mut three).now_or_never().is_none());
    let held = two.await.unwrap();
    // A request whose client has left does not keep the next one waiting.
    let mut gone = Box::pin(second.enter(REQUESTS));
    assert!((&mut gone).now_or_never().is_none());
    drop(gone);
    drop(held);
    drop(three.await.unwrap());
    assert_eq!((world.gates.in_flight(), world.gates.queued()), (0, 0));
}

#[tokio::test]
async fn the_queue_is_bounded_in_number_and_in_time() {
    let world = World::new(1, 256, 2);
    let hog = world.connection();
    let _held = hog.enter(REQUESTS).await.unwrap();
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(hog.enter(REQUESTS))).collect();
    let refused = waiting.iter_mut().filter_map(|one| one.now_or_never()).count();
    assert_eq!(refused, 2, "one connection does not get the whole queue");
    let other = world.connection();
    let mut honest = Box::pin(other.enter(REQUESTS));
    assert!((&mut honest).now_or_never().is_none(), "it has a place in the queue");
    assert_eq!(world.connection().enter(REQUESTS).await.unwrap_err(), Full);
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(honest.await.unwrap_err(), Full);
    drop(waiting);
    assert_eq!(world.gates.queued(), 0);
}

/// A connection at its own limit does not stand in the way of others.
#[tokio::test]
async fn a_permit_goes_to_a_connection_that_may_have_it() {
    let world = World::new(3, 1, 10);
    let (hog, other) = (world.connection(), world.connection());
    let held = hog.enter(REQUESTS).await.unwrap();
    let mut waits = Box::pin(hog.enter(REQUESTS));
    assert!((&mut waits).now_or_never().is_none());
    let permit = other.enter(REQUESTS).now_or_never();
    drop(permit.expect("it does not wait"));
    assert!((&mut waits).now_or_never().is_none());
    drop(held);
    assert!(waits.await.is_ok());
}

#[tokio::test]
async fn a_body_holds_its_permits() {
    let world = World::new(1, 256, 0);
    let connection = world.connection();
    let permit = connection.try_enter(REQUESTS);
    let body = Held::new(http_body_util::Full::new(Bytes::from_static(b"x")), [permit, None]);
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(1), false));
    assert_eq!(world.gates.in_flight(), 1);
    let body = http_body_util::BodyExt::collect(body).await.unwrap().to_bytes();
    assert_eq!((body.as_ref(), world.gates.in_flight()), (&b"x"[..], 0));
}
