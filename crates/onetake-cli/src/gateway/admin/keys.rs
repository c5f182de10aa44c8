//! Looking at keys: one, many, and how many.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use onetake_core::{Key as ClientKey, Record, RecordId, Scope};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::fault::{Answer, Fault};
use super::input::{Body, Name, Named, Params, named, tenant, tenant_bytes};
use super::scan::{Bounds, Filter, Place, scan};
use super::views::{AuditEntry, Key, Life, StateName};

/// Keys on a page, unless asked otherwise.
const PAGE_KEYS: usize = 50;
/// Keys on a page at most.
const PAGE_KEYS_MAX: usize = 500;
/// Keys that one request for a page looks at.
const LIST_LOOK_AT: usize = 2_000;
/// Keys that one request for counts looks at.
const COUNT_LOOK_AT: usize = 10_000;
/// The greatest age that is asked for: three hundred years.
const AGE_SECONDS_MAX: u64 = 10_000_000_000;
/// Entries of the audit on a page, unless asked otherwise, and with a key.
const AUDIT_ENTRIES: usize = 100;

/// Which keys.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Only those that stand so.
    state: Option<StateName>,
    /// Only those of this tenant: its digest, or its name as in `POST /v1/keys/lookup`.
    tenant: Option<String>,
    /// Only those of this route, as the configuration names it: `POST /v1/charges`.
    route: Option<String>,
    /// Only those that were first claimed at least so many seconds ago.
    #[param(maximum = 10_000_000_000_u64)]
    min_age_seconds: Option<u64>,
    /// Only those that were first claimed at most so many seconds ago.
    #[param(maximum = 10_000_000_000_u64)]
    max_age_seconds: Option<u64>,
    /// How many at most, from 1 to 500; 50 by default. (Counts have no use for it.)
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Where to go on: the `cursor` of the page before.
    cursor: Option<String>,
}

impl Which {
    fn filter(&self, api: &Api) -> Result<Filter, Fault> {
        let digest = |text: &String| tenant(text, &api.tenants);
        Ok(Filter {
            state: self.state,
            tenant: self.tenant.as_ref().map(digest).transpose()?,
            route: self.route.clone(),
            min_age: age("min_age_seconds", self.min_age_seconds)?,
            max_age: age("max_age_seconds", self.max_age_seconds)?,
        })
    }

    fn limit(&self) -> Result<usize, Fault> {
        match self.limit.unwrap_or(PAGE_KEYS) {
            limit @ 1..=PAGE_KEYS_MAX => Ok(limit),
            _ => Err(Fault::invalid(format!("`limit` must be from 1 to {PAGE_KEYS_MAX}."))),
        }
    }

    fn place(&self) -> Result<Place, Fault> {
        self.cursor.as_deref().map_or(Ok(Place::default()), Place::read)
    }
}

fn age(name: &str, seconds: Option<u64>) -> Result<Option<Duration>, Fault> {
    match seconds {
        Some(seconds) if seconds > AGE_SECONDS_MAX => {
            Err(Fault::invalid(format!("`{name}` must be at most {AGE_SECONDS_MAX}.")))
        }
        seconds => Ok(seconds.map(Duration::from_secs)),
    }
}

/// Some keys, in no order that means anything.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page {
    /// The keys. There may be none although there are more behind the cursor.
    keys: Vec<Key>,
    /// How many keys were looked at for it.
    looked_at: usize,
    /// How many of them could not be read: damaged, or encrypted with a key that is not configured.
    unreadable: usize,
    /// Where it goes on; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// Lists keys.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", params(Which),
    responses((status = 200, body = Page), super::Refused))]
pub(super) async fn list(State(api): State<Api>, Params(which): Params<Which>) -> Answer<Page> {
    let (filter, bounds) =
        (which.filter(&api)?, Bounds { wanted: which.limit()?, look_at: LIST_LOOK_AT });
    let _place = api.scans.clone().try_acquire_owned().map_err(|_| Fault::too_many(1))?;
    let mut keys = Vec::new();
    let looked = scan(&api.engine, &filter, which.place()?, bounds, |record| {
        keys.push(Key::of(&record, false));
    });
    let looked = looked.await?;
    let cursor = looked.next.map(|place| place.write());
    Ok(Json(Page { keys, looked_at: looked.at, unreadable: looked.unreadable, cursor }))
}

/// How many keys stand where, of those that were looked at.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Counts {
    running: usize,
    completed: usize,
    failed: usize,
    released: usize,
    unknown: usize,
    /// How many keys were looked at for it.
    looked_at: usize,
    /// How many of them could not be read.
    unreadable: usize,
    /// Where it goes on; absent at the end. Add up what all pages say.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// Counts keys.
#[utoipa::path(get, path = "/v1/counts", tag = "keys", params(Which),
    responses((status = 200, body = Counts), super::Refused))]
pub(super) async fn count(State(api): State<Api>, Params(which): Params<Which>) -> Answer<Counts> {
    let filter = which.filter(&api)?;
    which.limit()?;
    let _place = api.scans.clone().try_acquire_owned().map_err(|_| Fault::too_many(1))?;
    let mut counts = Counts::default();
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

/// How much of a key.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HowMuch {
    /// Whether to show the headers and the body of its outcome.
    body: Option<bool>,
}

/// Shows a key and its life.
#[utoipa::path(get, path = "/v1/keys/{name}", tag = "keys",
    params(("name" = String, Path, description = "Its reference, or its id",
        pattern = "^([0-9a-fA-F]{32}|([2-9A-HJ-NP-Za-hj-np-z]{4}-?){2}[2-9A-HJ-NP-Za-hj-np-z]{4})$"), HowMuch),
    responses((status = 200, body = Life), super::Refused, super::Missed))]
pub(super) async fn get(
    State(api): State<Api>,
    Name(name): Name,
    Params(how_much): Params<HowMuch>,
) -> Answer<Life> {
    let record = find(&api, &name).await?;
    life(&api, &record, how_much.body.unwrap_or_default()).await
}

/// A client's key, by what the client knows.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lookup {
    /// The key, as the client sent it.
    #[schema(min_length = 1, max_length = 255)]
    key: String,
    /// Whose key it is: `public`, `bearer:TOKEN`, `basic:USER`, `x-api-key:KEY`, `header:VALUE`,
    /// `client-ip:ADDRESS`, `jwt:CLAIM`, `jwt:ISSUER CLAIM`, `forward-auth:NAME`, or
    /// `consumer:NAME`.
    #[schema(
        example = "header:acct_1",
        pattern = "^(public|(bearer|basic|x-api-key|header|jwt|forward-auth|consumer):[ -~]+|client-ip:[0-9a-fA-F.:]+)$"
    )]
    tenant: String,
    /// The namespace of its route; empty by default.
    #[serde(default)]
    namespace: String,
    /// Whether to show the headers and the body of its outcome.
    #[serde(default)]
    body: bool,
}

/// Shows a key that is known by what the client sent. It is a POST so that no key and no credential
/// stands in a path.
#[utoipa::path(post, path = "/v1/keys/lookup", tag = "keys", request_body = Lookup,
    responses((status = 200, body = Life), super::Refused, super::Missed, super::BadBody))]
pub(super) async fn lookup(State(api): State<Api>, Body(asked): Body<Lookup>) -> Answer<Life> {
    // Quoted and bare form name the same key.
    let bare = asked.key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    let key = ClientKey::new(bare.unwrap_or(&asked.key))
        .map_err(|error| Fault::invalid(format!("`key` is none: {error}.")))?;
    let scope = Scope::new(tenant_bytes(&asked.tenant)?).namespace(asked.namespace);
    let record = load(&api, RecordId::derive(&scope, &key)).await?;
    let record = record.ok_or_else(Fault::no_such_key)?;
    life(&api, &record, asked.body).await
}

async fn life(api: &Api, record: &Record, with_body: bool) -> Answer<Life> {
    let notes = api.engine.notes(Some(record.id), None, AUDIT_ENTRIES).await?.notes;
    let replays = api.engine.replays(record);
    Ok(Json(Life::of(record, with_body, replays, &notes)))
}

/// The key of this name.
pub(super) async fn find(api: &Api, name: &str) -> Result<Arc<Record>, Fault> {
    let ids = match named(name)? {
        Named::Id(id) => vec![id],
        Named::Reference(reference) => api.engine.find(reference).await?,
    };
    let mut found = Vec::new();
    for id in ids {
        found.extend(load(api, id).await?);
    }
    match (found.pop(), found.as_slice()) {
        (None, _) => Err(Fault::no_key()),
        (Some(record), []) => Ok(record),
        (Some(last), others) => {
            let all = others.iter().chain([&last]).map(|record| record.id);
            Err(Fault::ambiguous(&all.collect::<Vec<_>>()))
        }
    }
}

async fn load(api: &Api, id: RecordId) -> Result<Option<Arc<Record>>, Fault> {
    match api.engine.inspect(vec![id]).await?.pop() {
        Some(Ok(found)) => Ok(found),
        Some(Err(error)) => Err(Fault::unreadable(error)),
        None => Ok(None),
    }
}

/// Which entries of the audit.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WhichEntries {
    /// Only those of this key: its reference, if the key is still there, or its id.
    key: Option<String>,
    /// How many at most, from 1 to 500; 100 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
    /// Where to go on: the `cursor` of the page before.
    cursor: Option<String>,
}

/// Some entries of the audit, the newest first. They are kept for ninety days.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Entries {
    /// The entries.
    entries: Vec<AuditEntry>,
    /// Where it goes on; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// Lists what operators did.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(WhichEntries),
    responses((status = 200, body = Entries), super::Refused, super::Missed))]
pub(super) async fn audit(
    State(api): State<Api>,
    Params(which): Params<WhichEntries>,
) -> Answer<Entries> {
    let limit = match which.limit.unwrap_or(AUDIT_ENTRIES) {
        limit @ 1..=PAGE_KEYS_MAX => limit,
        _ => return Err(Fault::invalid(format!("`limit` must be from 1 to {PAGE_KEYS_MAX}."))),
    };
    let of = match which.key.as_deref().map(named).transpose()? {
        Some(Named::Id(id)) => Some(id),
        // Not by the key itself, which may be forgotten.
        Some(Named::Reference(reference)) => match *api.engine.find(reference).await? {
            [id] => Some(id),
            [] => return Err(Fault::no_key()),
            ref ids => return Err(Fault::ambiguous(ids)),
        },
        None => None,
    };
    let from = which.cursor.as_deref().map(Place::read).transpose()?;
    let from = from.and_then(Place::into_page);
    let notes = api.engine.notes(of, from, limit).await?;
    Ok(Json(Entries {
        entries: notes.notes.iter().map(AuditEntry::of).collect(),
        cursor: notes.next.map(|next| Place::of_page(next).write()),
    }))
}
