//! The Lua scripts, and the commands that run them.
//!
//! A record's shard is the first byte of its id. All keys of a shard have one hash tag, so that
//! they are in one slot and a script can change them together, on Redis Cluster too:
//!
//! | key | content |
//! | --- | --- |
//! | `onetake:{xx}:<id>` | a hash: the record |
//! | `onetake:{xx}:leases` | a sorted set: the ids of running records, by the end of lease and grace; with negative scores the ids of records to reconcile, by the time of the reconciliation |
//! | `onetake:{xx}:fence` | the highest fence that was ever given in this shard |
//! | `onetake:{xx}:ref:<15 digits>` | the ids that begin with these digits, which are a reference |
//! | `onetake:secret:<name>` | a secret that was created at first use; it belongs to no shard |
//! | `onetake:{entries}:…` | the audit: see `entries.rs` |
//!
//! The second key makes it possible to find abandoned and unsettled records without reading all of
//! them. With the third key, fences rise even after a record expired and the server's clock was set
//! back. The fourth key leads from a reference to its record; `record.lua` decides how long it is
//! kept.

use bytes::Bytes;
use onetake_core::clock::micros;
use onetake_core::origin::HISTORY_BYTES_MAX;
use onetake_core::record::KEPT_AFTER_SETTLING;
use onetake_core::store::{Due, FOUND_MAX};
use onetake_core::{
    Cause, Claim, OnUnknown, RecordId, Reference, Settlement, Shift, Transition, hex,
};

use crate::state_names;

use super::command::RedisCommand;
use super::record;

macro_rules! script {
    ($name:literal) => {
        concat!(
            include_str!("scripts/record.lua"),
            include_str!(concat!("scripts/", $name, ".lua"))
        )
    };
}

/// The largest number up to which Lua, whose numbers are doubles, counts exactly.
const LUA_MAX: u64 = (1 << 53) - 1;

/// The constants that the scripts share with Rust, as the first lines of each script.
fn constants() -> String {
    let lease_ended: String =
        record::cause(&Cause::LeaseEnded).iter().map(|byte| format!("\\{byte:03}")).collect();
    let kept = micros(KEPT_AFTER_SETTLING);
    let words = [
        ("RUNNING", state_names::RUNNING),
        ("RELEASED", state_names::RELEASED),
        ("UNKNOWN", state_names::UNKNOWN),
        ("RECONCILE", record::on_unknown(OnUnknown::Reconcile)),
        ("RETRY", record::on_unknown(OnUnknown::Retry)),
        ("ROLLBACK", record::on_unknown(OnUnknown::Rollback)),
        ("RENEW", RENEW),
        ("EXPIRE_LEASE", EXPIRE_LEASE),
        ("POSTPONE_RECONCILE", POSTPONE_RECONCILE),
        ("FORGET", FORGET),
        ("RECORD_VERSION", record::VERSION),
        ("GRANTED", GRANTED),
        ("FOUND", FOUND),
        ("STALE", STALE),
        ("DONE", DONE),
        ("ABSENT", ABSENT),
        ("DUE_LEASES", DUE_LEASES),
        ("DUE_ASKS", DUE_ASKS),
    ];
    let words: String =
        words.iter().map(|(name, word)| format!("local {name} = '{word}'\n")).collect();
    format!(
        "local MAX = {LUA_MAX}\nlocal KEPT_AFTER_SETTLING = {kept}\nlocal LEASE_ENDED = '{lease_ended}'\n\
         local HISTORY_BYTES_MAX = {HISTORY_BYTES_MAX}\nlocal FOUND_MAX = {FOUND_MAX}\n{words}"
    )
}

// The words of settlements that lead to no state of their own. The others are the names of states.
const RENEW: &str = "renew";
const EXPIRE_LEASE: &str = "abandon";
const POSTPONE_RECONCILE: &str = "defer";
const FORGET: &str = "forget";

// The first words of replies.
pub(super) const GRANTED: &str = "granted";
const FOUND: &str = "found";
const STALE: &str = "stale";
pub(super) const DONE: &str = "done";
pub(super) const ABSENT: &str = "absent";

// The parts of the sorted set of leases that a search reads.
const DUE_LEASES: &str = "leases";
const DUE_ASKS: &str = "asks";

/// The number of shards.
const SHARDS: u16 = 256;

/// The scripts, and the prefix of all keys.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) prefix: String,
    shift: Shift,
    claim: redis::Script,
    settle: redis::Script,
    load: redis::Script,
    due: redis::Script,
    trim: redis::Script,
    secret: redis::Script,
    pub(super) entry: redis::Script,
    pub(super) entries: redis::Script,
    pub(super) old_notes: redis::Script,
}

impl Scripts {
    /// Creates commands on keys that begin with `prefix`.
    pub(super) fn new(prefix: String, shift: Shift) -> Self {
        let [claim, settle, load, due, trim, secret, entry, entries, old_notes] =
            Self::texts().map(|text| redis::Script::new(&text));
        Self { prefix, shift, claim, settle, load, due, trim, secret, entry, entries, old_notes }
    }

    /// The texts of all scripts that a server needs.
    pub(super) fn texts() -> [String; 9] {
        let constants = constants();
        [
            script!("claim"),
            script!("settle"),
            script!("load"),
            script!("due"),
            script!("trim"),
            script!("secret"),
            script!("note"),
            script!("notes"),
            script!("old_notes"),
        ]
        .map(|script: &str| format!("{constants}{script}"))
    }

    pub(super) fn claim(&self, claim: &Claim) -> RedisCommand {
        let [record, leases, reference] = self.keys(claim.id);
        let keys = [record, leases, reference, self.fence(claim.id)];
        let terms = &claim.terms;
        self.run(&self.claim, &keys)
            .arg(claim.id.as_bytes().to_vec())
            .arg(self.shift())
            .arg(claim.attempt.as_bytes().to_vec())
            .arg(record::fingerprint(&claim.fingerprint))
            .arg(number(micros(terms.ttl)))
            .arg(number(micros(terms.lease)))
            .arg(number(micros(terms.grace)))
            .arg(record::on_unknown(terms.on_unknown))
            .arg(claim.origin.to_bytes())
            .with_contact()
    }

    /// Creates the command that settles. Returns also the outcome that it sends.
    pub(super) fn settle(&self, settlement: &Settlement) -> (RedisCommand, Bytes) {
        let keys = self.keys(settlement.id);
        let (transition, outcome) = match &settlement.transition {
            Transition::Renew => (RENEW, Bytes::new()),
            Transition::ExpireLease => (EXPIRE_LEASE, Bytes::new()),
            Transition::PostponeReconcile(hold) => {
                (POSTPONE_RECONCILE, number(micros(*hold)).into())
            }
            Transition::Forget => (FORGET, Bytes::new()),
            Transition::Release => (state_names::RELEASED, Bytes::new()),
            Transition::Complete(recording) => {
                (state_names::COMPLETED, record::recording(recording))
            }
            Transition::Fail(failure) => (state_names::FAILED, record::failure(&failure.clipped())),
            Transition::Unknown(cause) => (state_names::UNKNOWN, record::cause(&cause.clipped())),
        };
        let command = self
            .run(&self.settle, &keys)
            .arg(settlement.id.as_bytes().to_vec())
            .arg(self.shift())
            .arg(settlement.attempt.as_bytes().to_vec())
            .arg(transition)
            .arg(outcome.clone())
            .with_contact();
        (command, outcome)
    }

    pub(super) fn load(&self, id: RecordId) -> RedisCommand {
        self.run(&self.load, &[self.record(id)]).arg(self.shift())
    }

    /// Reads the ids that have a reference.
    pub(super) fn find(&self, reference: Reference) -> RedisCommand {
        let key = self.reference(*reference.ids().start());
        RedisCommand::on(key.as_bytes(), "GET").arg(key)
    }

    /// Returns a command for each shard: it reads up to `limit` records that are due.
    pub(super) fn due(&self, which: Due, limit: usize) -> Vec<RedisCommand> {
        let one = |shard| {
            self.run(&self.due, &[self.leases(shard)]).arg(self.shift()).arg(limit.to_string()).arg(
                match which {
                    Due::LeaseEnd => DUE_LEASES,
                    Due::Reconcile => DUE_ASKS,
                },
            )
        };
        (0..SHARDS).map(one).collect()
    }

    /// Reads the fields of a record that the reaper needs.
    pub(super) fn look(&self, id: RecordId) -> RedisCommand {
        let key = self.record(id);
        RedisCommand::on(key.as_bytes(), "HMGET").arg(key).arg("state").arg("attempt").arg("grace")
    }

    pub(super) fn trim(&self, id: RecordId) -> RedisCommand {
        let keys = [self.record(id), self.leases(shard(id))];
        self.run(&self.trim, &keys).arg(id.as_bytes().to_vec()).arg(self.shift())
    }

    pub(super) fn secret(&self, name: &str, fresh: &[u8; 32]) -> RedisCommand {
        let key = format!("{}:secret:{name}", self.prefix);
        self.run(&self.secret, &[key]).arg(fresh.to_vec())
    }

    /// A record's key.
    pub(super) fn record(&self, id: RecordId) -> String {
        format!("{}:{{{:02x}}}:{}", self.prefix, shard(id), hex::encode(id.as_bytes()))
    }

    /// The pattern of the keys of all records.
    pub(super) fn any_record(&self) -> String {
        // Characters of the prefix that have a meaning in a pattern are escaped.
        let special =
            |sign: char| if "*?[]^-\\".contains(sign) { format!("\\{sign}") } else { sign.into() };
        let prefix: String = self.prefix.chars().map(special).collect();
        format!("{prefix}:{{??}}:{}", "?".repeat(2 * RecordId::BYTES))
    }

    /// Returns the record that a key belongs to, if it is the key of a record.
    pub(super) fn id_of(&self, key: &[u8]) -> Option<RecordId> {
        let digits = std::str::from_utf8(key).ok()?.rsplit(':').next()?;
        let id = RecordId::from_bytes(hex::decode(digits)?);
        (self.record(id).as_bytes() == key).then_some(id)
    }

    /// The keys that a settlement uses.
    fn keys(&self, id: RecordId) -> [String; 3] {
        [self.record(id), self.leases(shard(id)), self.reference(id)]
    }

    /// The offset that tests add to the server's clock; or, after an equals sign, the time that
    /// replaces it.
    pub(super) fn shift(&self) -> String {
        match self.shift.fixed() {
            Some(at) => format!("={}", at.as_micros()),
            None => self.shift.as_micros().to_string(),
        }
    }

    fn reference(&self, id: RecordId) -> String {
        // Sixty bits, of which the first eight are the shard.
        let digits = id.reference().bits();
        format!("{}:{{{:02x}}}:ref:{digits:015x}", self.prefix, shard(id))
    }

    fn leases(&self, shard: u16) -> String {
        format!("{}:{{{shard:02x}}}:leases", self.prefix)
    }

    fn fence(&self, id: RecordId) -> String {
        format!("{}:{{{:02x}}}:fence", self.prefix, shard(id))
    }

    pub(super) fn run(&self, script: &redis::Script, keys: &[String]) -> RedisCommand {
        let slot = keys.first().map(String::as_bytes).unwrap_or_default();
        let command = RedisCommand::on(slot, "EVALSHA")
            .arg(script.get_hash().to_owned())
            .arg(keys.len().to_string());
        keys.iter().fold(command, |command, key| command.arg(key.clone()))
    }
}

fn shard(id: RecordId) -> u16 {
    let [first, ..] = *id.as_bytes();
    first.into()
}

fn number(value: u64) -> String {
    value.to_string()
}
