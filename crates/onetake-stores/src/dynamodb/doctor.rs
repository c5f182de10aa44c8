//! Diagnosis: the table's state, its replicas, and this machine's clock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::primitives::{DateTime, DateTimeFormat};
use aws_sdk_dynamodb::types::{
    BillingMode, BillingModeSummary, MultiRegionConsistency, TableDescription,
    TimeToLiveDescription,
};

use onetake_core::{StoreError, Timestamp};

use super::table::{Intent, No, Table};
use super::{DynamoOptions, item, schema};
use crate::{Diagnosis, Finding};

/// The number of round trips that are measured.
const ROUND_TRIPS: usize = 5;
/// The clock difference from which it is reported. The server's time is in whole seconds.
const CLOCK_OFF: Duration = Duration::from_secs(30);

pub(super) async fn diagnose(
    table: &Table,
    options: &DynamoOptions,
) -> Result<Diagnosis, StoreError> {
    let found = schema::describe(table).await?;
    let ttl = schema::describe_ttl(table).await?;
    let dates = Dates::default();
    let mut trips = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        trips.push(round_trip(table, &dates).await?);
    }
    trips.sort();
    let median = trips.get(ROUND_TRIPS / 2).copied().unwrap_or_default();
    let ahead = dates.seen().map(|server| ahead(server, table.clock.now()));
    let mut findings = judge(&found, &ttl);
    findings.extend(ahead.map(|ahead| judge_clock(ahead, options.skew_margin)));
    let place = &table.place;
    let at = place.endpoint.as_ref().map(|at| format!(" at {at}")).unwrap_or_default();
    let server = format!("DynamoDB in {}{at}, table {}", place.region, place.table);
    Ok(Diagnosis::new(server, median, ahead, findings))
}

/// Measures the read of an absent item.
async fn round_trip(table: &Table, dates: &Dates) -> Result<Duration, StoreError> {
    let asked_at = table.clock.monotonic();
    let get = table.client.get_item().table_name(&table.place.table).consistent_read(true);
    let get = get.key("id", item::bytes(&[0; 16]));
    let request = || get.clone().customize().interceptor(dates.clone()).send();
    table.ask(Intent::Read, &[], request).await.map_err(No::into_error)?;
    Ok(table.clock.monotonic().saturating_sub(asked_at))
}

fn judge(found: &TableDescription, ttl: &TimeToLiveDescription) -> Vec<Finding> {
    let mut findings =
        vec![Finding::fine(format!("every write is durable; {}", schema::state(found)))];
    findings.push(if schema::deletes(ttl) {
        Finding::fine("the server deletes expired records (TTL is on)")
    } else {
        let fix = "run `onetake migrate`, which switches TTL on";
        Finding::weak(
            "TTL is off, so expired records are not deleted and the table grows without limit",
            fix,
        )
    });
    for index in schema::lacks(found) {
        let what = format!("the table has no index `{}`: {}", index.name, index.without);
        findings.push(Finding::broken(what, "run `onetake migrate`, which adds the index"));
    }
    let billing = found.billing_mode_summary().and_then(BillingModeSummary::billing_mode);
    findings.push(if billing == Some(&BillingMode::PayPerRequest) {
        Finding::fine("the capacity grows on demand (PAY_PER_REQUEST)")
    } else {
        let fix = "switch the table to PAY_PER_REQUEST, or configure auto scaling";
        Finding::weak(
            "the capacity of the table is fixed: requests above it are refused with 503",
            fix,
        )
    });
    let regions: Vec<&str> = found.replicas().iter().filter_map(|r| r.region_name()).collect();
    if !regions.is_empty() {
        let what = format!("the table is a global table ({})", regions.join(", "));
        let strong = found.multi_region_consistency() == Some(&MultiRegionConsistency::Strong);
        findings.push(if strong {
            Finding::fine(format!("{what} with strong consistency"))
        } else {
            let fix =
                "let all nodes that share keys use one region, or make the table strongly consistent";
            Finding::broken(
                format!("{what} with asynchronous replication: two regions can both run the same key"),
                fix,
            )
        });
    }
    findings
}

fn judge_clock(ahead: i64, margin: Duration) -> Finding {
    let off = Duration::from_micros(ahead.unsigned_abs());
    let what = format!("the clock of this machine is off by {} s", off.as_secs());
    if off > margin / 2 {
        let fix = "synchronize it with NTP: otherwise keys could run again before they expire";
        Finding::broken(what, fix)
    } else if off > CLOCK_OFF {
        Finding::weak(what, "synchronize it with NTP")
    } else {
        Finding::fine("the clock of this machine is right to within a few seconds")
    }
}

/// Returns the server's lead in microseconds.
fn ahead(server: Timestamp, here: Timestamp) -> i64 {
    let micros =
        |duration| i64::try_from(onetake_core::clock::micros(duration)).unwrap_or(i64::MAX);
    if server >= here { micros(server.since(here)) } else { -micros(here.since(server)) }
}

/// Records the `Date` of answers.
#[derive(Clone, Debug, Default)]
struct Dates(Arc<Mutex<Option<Timestamp>>>);

impl Dates {
    fn seen(&self) -> Option<Timestamp> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Intercept for Dates {
    fn name(&self) -> &'static str {
        "onetake-dates"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        let date = date.and_then(|date| DateTime::from_str(date, DateTimeFormat::HttpDate).ok());
        if let Some(seconds) = date.and_then(|date| u64::try_from(date.secs()).ok()) {
            let at = Timestamp::from_micros(seconds.saturating_mul(1_000_000));
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Weight;
    use aws_sdk_dynamodb::types::{
        GlobalSecondaryIndexDescription, ReplicaDescription, TableStatus, TimeToLiveStatus,
    };

    fn worst(found: &TableDescription, ttl: Option<TimeToLiveStatus>) -> Option<Weight> {
        let ttl = TimeToLiveDescription::builder().set_time_to_live_status(ttl).build();
        judge(found, &ttl).iter().map(|finding| finding.weight).max()
    }

    #[test]
    fn what_breaks_the_promise_is_named() {
        let billing =
            BillingModeSummary::builder().billing_mode(BillingMode::PayPerRequest).build();
        let index = |name| GlobalSecondaryIndexDescription::builder().index_name(name).build();
        let indexes = ["running", "found", "asks"].map(index).to_vec();
        let active = TableDescription::builder().table_status(TableStatus::Active);
        let bare = active.clone().billing_mode_summary(billing);
        let alone = bare.clone().set_global_secondary_indexes(Some(indexes.clone()));
        let on = Some(TimeToLiveStatus::Enabled);
        assert_eq!(worst(&alone.clone().build(), on.clone()), Some(Weight::Fine));
        assert_eq!(worst(&alone.clone().build(), None), Some(Weight::Weak));
        let fixed = active.set_global_secondary_indexes(Some(indexes.clone())).build();
        assert_eq!(worst(&fixed, on.clone()), Some(Weight::Weak));
        for at in 0..indexes.len() {
            let mut others = indexes.clone();
            others.remove(at);
            let lacking = bare.clone().set_global_secondary_indexes(Some(others)).build();
            assert_eq!(worst(&lacking, on.clone()), Some(Weight::Broken), "{:?}", indexes[at]);
        }
        let replica = ReplicaDescription::builder().region_name("us-east-1").build();
        let global = alone.replicas(replica);
        assert_eq!(worst(&global.clone().build(), on.clone()), Some(Weight::Broken));
        let strong = global.multi_region_consistency(MultiRegionConsistency::Strong).build();
        assert_eq!(worst(&strong, on), Some(Weight::Fine));
    }

    #[test]
    fn a_clock_beyond_half_the_margin_breaks_the_promise() {
        let margin = Duration::from_secs(600);
        let weight = |seconds: i64| judge_clock(seconds * 1_000_000, margin).weight;
        assert_eq!(
            [weight(2), weight(-60), weight(301), weight(-301)],
            [Weight::Fine, Weight::Weak, Weight::Broken, Weight::Broken]
        );
        let (early, late) = (Timestamp::from_micros(5), Timestamp::from_micros(9));
        assert_eq!((ahead(late, early), ahead(early, late)), (4, -4));
    }
}
