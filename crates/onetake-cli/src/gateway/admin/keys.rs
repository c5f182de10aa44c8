//! Reading keys: one key, lists, counts, and the audit log.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use onetake_core::{Key as ClientKey, Record, RecordId, Scope};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::error::{ApiError, ApiResult};
use super::input::{JsonBody, Name, Named, Params, named, tenant, tenant_bytes};
use super::scan::{Bounds, Filter, ScanPosition, scan};
use super::views::{AuditEntryView, Key, Life, StateName};

/// Default number of keys on a page.
const PAGE_KEYS: usize = 50;
/// Maximum number of keys on a page.
const PAGE_KEYS_MAX: usize = 500;
/// Number of keys that one request for a list reads.
const LIST_LOOK_AT: usize = 2_000;
/// Number of keys that one request for counts reads.
const COUNT_LOOK_AT: usize = 10_000;
/// Maximum age in a filter: three hundred years.
const AGE_SECONDS_MAX: u64 = 10_000_000_000;
/// Default number of audit entries on a page, and their number in the history of a key.
const AUDIT_ENTRIES: usize = 100;

/// Filters and paging.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct KeyFilter {
    /// Only keys in this state.
    state: Option<StateName>,
    /// Only keys of this tenant: its digest, or its name as in `POST /v1/keys/lookup`.
    tenant: Option<String>,
    /// Only keys of this route, as the configuration names it: `POST /v1/charges`.
    route: Option<String>,
    /// Only keys that were first claimed at least this many seconds ago.
    #[param(maximum = 10_000_000_000_u64)]
    min_age_seconds: Option<u64>,
    /// Only keys that were first claimed at most this many seconds ago.
    #[param(maximum = 10_000_000_000_u64)]
    max_age_seconds: Option<u64>,
    /// Maximum number of keys, from 1 to 500; 50 by default. Counts ignore it.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// The `cursor` of the previous page.
    cursor: Option<String>,
}

impl KeyFilter {
    fn filter(&self, api: &Api) -> Result<Filter, ApiError> {
        let digest = |text: &String| tenant(text, &api.tenants);
        Ok(Filter {
            state: self.state,
            tenant: self.tenant.as_ref().map(digest).transpose()?,
            route: self.route.clone(),
            min_age: age("min_age_seconds", self.min_age_seconds)?,
            max_age: age("max_age_seconds", self.max_age_seconds)?,
        })
    }

    fn limit(&self) -> Result<usize, ApiError> {
        match self.limit.unwrap_or(PAGE_KEYS) {
            limit @ 1..=PAGE_KEYS_MAX => Ok(limit),
            _ => Err(ApiError::invalid(format!("`limit` must be from 1 to {PAGE_KEYS_MAX}."))),
        }
    }

    fn place(&self) -> Result<ScanPosition, ApiError> {
        self.cursor.as_deref().map_or(Ok(ScanPosition::default()), ScanPosition::read)
    }
}

fn age(name: &str, seconds: Option<u64>) -> Result<Option<Duration>, ApiError> {
    match seconds {
        Some(seconds) if seconds > AGE_SECONDS_MAX => {
            Err(ApiError::invalid(format!("`{name}` must be at most {AGE_SECONDS_MAX}.")))
        }
        seconds => Ok(seconds.map(Duration::from_secs)),
    }
}

/// A page of keys, in no particular order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page {
    /// The keys. A page may be empty although there are more pages.
    keys: Vec<Key>,
    /// Number of keys that were read for this page.
    looked_at: usize,
    /// Number of these keys that could not be read: damaged, or encrypted with a key that is not
    /// configured.
    unreadable: usize,
    /// The cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// Lists keys.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", params(KeyFilter),
    responses((status = 200, body = Page), super::CommonErrors))]
pub(super) async fn list(
    State(api): State<Api>,
    Params(which): Params<KeyFilter>,
) -> ApiResult<Page> {
    let (filter, bounds) =
        (which.filter(&api)?, Bounds { wanted: which.limit()?, look_at: LIST_LOOK_AT });
    let _place = api.scans.clone().try_acquire_owned().map_err(|_| ApiError::too_many(1))?;
    let mut keys = Vec::new();
    let looked = scan(&api.engine, &filter, which.place()?, bounds, |record| {
        keys.push(Key::of(&record, false));
    });
    let looked = looked.await?;
    let cursor = looked.next.map(|place| place.write());
    Ok(Json(Page { keys, looked_at: looked.at, unreadable: looked.unreadable, cursor }))
}

/// Counts by state, of the keys that were read.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = Counts)]
pub(crate) struct StateCounts {
    running: usize,
    completed: usize,
    failed: usize,
    released: usize,
    unknown: usize,
    /// Number of keys that were read for this page.
    looked_at: usize,
    /// Number of these keys that could not be read.
    unreadable: usize,
    /// The cursor of the next page; absent on the last page. Add up the counts of all pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// Counts keys by state.
#[utoipa::path(get, path = "/v1/counts", tag = "keys", params(KeyFilter),
    responses((status = 200, body = StateCounts), super::CommonErrors))]
pub(super) async fn count(
    State(api): State<Api>,
    Params(which): Params<KeyFilter>,
) -> ApiResult<StateCounts> {
    let filter = which.filter(&api)?;
    which.limit()?;
    let _place = api.scans.clone().try_acquire_owned().map_err(|_| ApiError::too_many(1))?;
    let mut counts = StateCounts::default();
    let bounds = Bounds { wanted: usize::MAX, look_at: COUNT_LOOK_AT };
    let looked = scan(&api.engine, &filter, which.place()?, bounds, |record| {
        let count = match StateName::from(&record.state) {
            StateName::Running => &mut counts.running,
            StateName::Completed => &mut counts.completed,
            StateName::Failed => &mut counts.failed,
            StateName::Released => &mut counts.released,
            StateName::Unknown => &mut counts.unknown,
        };
        *count += 1;
    });
    let looked = looked.await?;
    counts.looked_at = looked.at;
    counts.unreadable = looked.unreadable;
    counts.cursor = looked.next.map(|place| place.write());
    Ok(Json(counts))
}

/// How much of a key to show.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HowMuch {
    /// Whether to show the headers and the body of the outcome.
    body: Option<bool>,
}

/// Shows a key and its history.
#[utoipa::path(get, path = "/v1/keys/{name}", tag = "keys",
    params(("name" = String, Path, description = "The reference of the key, or its id",
        pattern = "^([0-9a-fA-F]{32}|([2-9A-HJ-NP-Za-hj-np-z]{4}-?){2}[2-9A-HJ-NP-Za-hj-np-z]{4})$"), HowMuch),
    responses((status = 200, body = Life), super::CommonErrors, super::Missed))]
pub(super) async fn get(
    State(api): State<Api>,
    Name(name): Name,
    Params(how_much): Params<HowMuch>,
) -> ApiResult<Life> {
    let record = find(&api, &name).await?;
    life(&api, &record, how_much.body.unwrap_or_default()).await
}

/// A key by what the client sent.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lookup {
    /// The key as the client sent it.
    #[schema(min_length = 1, max_length = 255)]
    key: String,
    /// The tenant that owns the key: `public`, `bearer:TOKEN`, `basic:USER`, `x-api-key:KEY`,
    /// `header:VALUE`, `client-ip:ADDRESS`, `jwt:CLAIM`, `jwt:ISSUER CLAIM`, `forward-auth:NAME`,
    /// or `consumer:NAME`.
    #[schema(
        example = "header:acct_1",
        pattern = "^(public|(bearer|basic|x-api-key|header|jwt|forward-auth|consumer):[ -~]+|client-ip:[0-9a-fA-F.:]+)$"
    )]
    tenant: String,
    /// The namespace of the key's route; empty by default.
    #[serde(default)]
    namespace: String,
    /// Whether to show the headers and the body of the outcome.
    #[serde(default)]
    body: bool,
}

/// Shows a key by what the client sent. It is a POST, so that no key and no credential appears in a
/// URL.
#[utoipa::path(post, path = "/v1/keys/lookup", tag = "keys", request_body = Lookup,
    responses((status = 200, body = Life), super::CommonErrors, super::Missed, super::BadBody))]
pub(super) async fn lookup(
    State(api): State<Api>,
    JsonBody(asked): JsonBody<Lookup>,
) -> ApiResult<Life> {
    // The quoted and the bare form are the same key.
    let bare = asked.key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    let key = ClientKey::new(bare.unwrap_or(&asked.key))
        .map_err(|error| ApiError::invalid(format!("`key` is not valid: {error}.")))?;
    let scope = Scope::new(tenant_bytes(&asked.tenant)?).namespace(asked.namespace);
    let record = load(&api, RecordId::derive(&scope, &key)).await?;
    let record = record.ok_or_else(ApiError::no_such_key)?;
    life(&api, &record, asked.body).await
}

async fn life(api: &Api, record: &Record, with_body: bool) -> ApiResult<Life> {
    let entries = api.engine.audit_entries(Some(record.id), None, AUDIT_ENTRIES).await?.entries;
    let replays = api.engine.replays(record);
    Ok(Json(Life::of(record, with_body, replays, &entries)))
}

/// Finds the key with this name.
pub(super) async fn find(api: &Api, name: &str) -> Result<Arc<Record>, ApiError> {
    let ids = match named(name)? {
        Named::Id(id) => vec![id],
        Named::Reference(reference) => api.engine.find(reference).await?,
    };
    let mut found = Vec::new();
    for id in ids {
        found.extend(load(api, id).await?);
    }
    match (found.pop(), found.as_slice()) {
        (None, _) => Err(ApiError::no_key()),
        (Some(record), []) => Ok(record),
        (Some(last), others) => {
            let all = others.iter().chain([&last]).map(|record| record.id);
            Err(ApiError::ambiguous(&all.collect::<Vec<_>>()))
        }
    }
}

async fn load(api: &Api, id: RecordId) -> Result<Option<Arc<Record>>, ApiError> {
    match api.engine.inspect(vec![id]).await?.pop() {
        Some(Ok(found)) => Ok(found),
        Some(Err(error)) => Err(ApiError::unreadable(error)),
        None => Ok(None),
    }
}

/// Filters and paging of the audit log.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditFilter {
    /// Only entries of this key: its reference, if the key still exists, or its id.
    key: Option<String>,
    /// Maximum number of entries, from 1 to 500; 100 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// The `cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of the audit log, newest first. Entries are kept for ninety days.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Entries {
    /// The entries.
    entries: Vec<AuditEntryView>,
    /// The cursor of the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// Lists operator actions from the audit log.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(AuditFilter),
    responses((status = 200, body = Entries), super::CommonErrors, super::Missed))]
pub(super) async fn audit(
    State(api): State<Api>,
    Params(which): Params<AuditFilter>,
) -> ApiResult<Entries> {
    let limit = match which.limit.unwrap_or(AUDIT_ENTRIES) {
        limit @ 1..=PAGE_KEYS_MAX => limit,
        _ => return Err(ApiError::invalid(format!("`limit` must be from 1 to {PAGE_KEYS_MAX}."))),
    };
    let of = match which.key.as_deref().map(named).transpose()? {
        Some(Named::Id(id)) => Some(id),
        // The id is enough here. The record itself may be forgotten.
        Some(Named::Reference(reference)) => match *api.engine.find(reference).await? {
            [id] => Some(id),
            [] => return Err(ApiError::no_key()),
            ref ids => return Err(ApiError::ambiguous(ids)),
        },
        None => None,
    };
    let from = which.cursor.as_deref().map(ScanPosition::read).transpose()?;
    let from = from.and_then(ScanPosition::into_page);
    let entries = api.engine.audit_entries(of, from, limit).await?;
    Ok(Json(Entries {
        entries: entries.entries.iter().map(AuditEntryView::of).collect(),
        cursor: entries.next.map(|next| ScanPosition::of_page(next).write()),
    }))
}
