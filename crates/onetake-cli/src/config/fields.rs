//! Which fields there are, and the nearest right name for one that there is not.

use super::error::Fault;

/// The fields of one kind of table.
#[derive(Debug)]
pub(super) struct Fields {
    /// How messages call such a table.
    pub(super) label: &'static str,
    list: &'static [Field],
    /// More of them, which another kind of table has too.
    shared: &'static [Field],
}

/// A field's name and what this version makes of it.
#[derive(Debug)]
struct Field(&'static str, Standing);

#[derive(Debug)]
enum Standing {
    /// It is read.
    Here,
    /// It never belongs here; the text says why.
    Never(&'static str),
}

use Standing::{Here, Never};

/// The whole file.
pub(super) const ROOT: Fields = Fields {
    label: "the file",
    list: &[
        Field("gateway", Here),
        Field("admin", Here),
        Field("store", Here),
        Field("sweep", Here),
        Field("relay", Here),
        Field("defaults", Here),
        Field("route", Here),
        Field("secrets", Here),
    ],
    shared: &[],
};

/// `[gateway]`
pub(super) const GATEWAY: Fields = Fields {
    label: "[gateway]",
    list: &[
        Field("listen", Here),
        Field("upstream", Here),
        Field("trusted_proxies", Here),
        Field("tls", Here),
        Field("upstream_tls", Here),
    ],
    shared: &[],
};

/// `tls = { … }`
pub(super) const TLS: Fields =
    Fields { label: "tls", list: &[Field("certificate", Here), Field("key", Here)], shared: &[] };

/// `upstream_tls = { … }`
pub(super) const UPSTREAM_TLS: Fields = Fields {
    label: "upstream_tls",
    list: &[Field("roots", Here), Field("certificate", Here), Field("key", Here)],
    shared: &[],
};

/// `[admin]`
pub(super) const ADMIN: Fields =
    Fields { label: "[admin]", list: &[Field("listen", Here), Field("token", Here)], shared: &[] };

/// `[store]`
pub(super) const STORE: Fields = Fields {
    label: "[store]",
    list: &[
        Field("url", Here),
        Field("filter", Here),
        Field("allow_lossy", Here),
        Field("journal", Here),
    ],
    shared: &[],
};

/// `url = { env = "NAME" }`
pub(super) const FROM_ENV: Fields =
    Fields { label: "a value from the environment", list: &[Field("env", Here)], shared: &[] };

/// `[sweep]`
pub(super) const SWEEP: Fields = Fields {
    label: "[sweep]",
    list: &[Field("interval", Here), Field("batch", Here)],
    shared: &[],
};

/// `[relay]`
pub(super) const RELAY: Fields = Fields {
    label: "[relay]",
    list: &[
        Field("sink", Here),
        Field("subject_prefix", Here),
        Field("secrets", Here),
        Field("batch", Here),
        Field("hold", Here),
        Field("poll", Here),
        Field("timeout", Here),
        Field("backoff_max", Here),
        Field("tries_max", Here),
        Field("kept", Here),
        Field("listen", Here),
    ],
    shared: &[],
};

/// `[[route]]`
pub(super) const ROUTE: Fields = Fields {
    label: "[[route]]",
    list: &[Field("match", Here), Field("preset", Here)],
    shared: POLICY,
};

/// `[defaults]`: what a route has, but for what names the route.
pub(super) const DEFAULTS: Fields = Fields {
    label: "[defaults]",
    list: &[
        Field(
            "match",
            Never("the defaults hold for every POST and PATCH; a [[route]] has a match"),
        ),
        Field("preset", Never("name the preset in each [[route]] that it is for")),
    ],
    shared: POLICY,
};

/// What routes and defaults have in common.
const POLICY: &[Field] = &[
    Field("namespace", Here),
    Field("key", Here),
    Field("tenant", Here),
    Field("fingerprint", Here),
    Field("ttl", Here),
    Field("lease", Here),
    Field("grace", Here),
    Field("in_flight", Here),
    Field("wait_timeout", Here),
    Field("on_unknown", Here),
    Field("reconcile", Here),
    Field("on_store_down", Here),
    Field("velocity", Here),
    Field("upstream", Here),
    Field("upstream_timeout", Here),
    Field("record", Here),
    Field("release", Here),
    Field("unknown", Here),
    Field("statuses", Here),
    Field("errors", Here),
    Field("max_request_body", Here),
    Field("max_response_body", Here),
];

/// `key = { … }`
pub(super) const KEY: Fields = Fields {
    label: "key",
    list: &[
        Field("from", Here),
        Field("required", Here),
        Field("format", Here),
        Field("min_length", Here),
        Field("pointer", Here),
        Field("parts", Here),
    ],
    shared: &[],
};

/// `tenant = { … }`
pub(super) const TENANT: Fields = Fields {
    label: "tenant",
    list: &[Field("header", Here), Field("jwt", Here), Field("forward_auth", Here)],
    shared: &[],
};

/// `jwt = { … }`
pub(super) const JWT: Fields = Fields {
    label: "jwt",
    list: &[
        Field("claim", Here),
        Field("issuer", Here),
        Field("audience", Here),
        Field("key", Here),
        Field("algorithms", Here),
        Field("leeway", Here),
    ],
    shared: &[],
};

/// `key = { … }` of `jwt`.
pub(super) const JWT_KEY: Fields = Fields {
    label: "a key of jwt",
    list: &[Field("env", Here), Field("file", Here), Field("kid", Here)],
    shared: &[],
};

/// `forward_auth = { … }`
pub(super) const FORWARD_AUTH: Fields = Fields {
    label: "forward_auth",
    list: &[
        Field("url", Here),
        Field("header", Here),
        Field("timeout", Here),
        Field("cache", Here),
    ],
    shared: &[],
};

/// `reconcile = { … }`
pub(super) const RECONCILE: Fields = Fields {
    label: "reconcile",
    list: &[
        Field("request", Here),
        Field("not_executed", Here),
        Field("headers", Here),
        Field("timeout", Here),
        Field("limit", Here),
    ],
    shared: &[],
};

/// `fingerprint = { … }`
pub(super) const FINGERPRINT: Fields = Fields {
    label: "fingerprint",
    list: &[
        Field("mode", Here),
        Field("exclude", Here),
        Field("include", Here),
        Field("headers", Here),
    ],
    shared: &[],
};

/// `[secrets]`
pub(super) const SECRETS: Fields = Fields {
    label: "[secrets]",
    list: &[Field("fingerprint", Here), Field("issued_keys", Here), Field("encryption", Here)],
    shared: &[],
};

/// One secret.
pub(super) const SECRET: Fields =
    Fields { label: "a secret", list: &[Field("id", Here), Field("key", Here)], shared: &[] };

/// `key = { … }` of a secret.
pub(super) const SECRET_KEY: Fields = Fields {
    label: "a secret's key",
    list: &[Field("env", Here), Field("file", Here)],
    shared: &[],
};

/// One limit of `velocity`
pub(super) const VELOCITY: Fields =
    Fields { label: "velocity", list: &[Field("by", Here), Field("limit", Here)], shared: &[] };

/// `statuses = { … }`
pub(super) const STATUSES: Fields = Fields {
    label: "statuses",
    list: &[Field("mismatch", Here), Field("in_flight", Here), Field("wait_timeout", Here)],
    shared: &[],
};

/// Every kind of table, to find where a misplaced field belongs.
const ALL: [&Fields; 16] = [
    &ROOT,
    &GATEWAY,
    &ADMIN,
    &STORE,
    &SWEEP,
    &RELAY,
    &ROUTE,
    &DEFAULTS,
    &KEY,
    &TENANT,
    &JWT,
    &FORWARD_AUTH,
    &RECONCILE,
    &FINGERPRINT,
    &STATUSES,
    &SECRETS,
];

impl Fields {
    /// Whether a table like this has the field; if not, why.
    ///
    /// `rename` turns the nearest right name into what the user has to write.
    pub(super) fn check(&self, name: &str, rename: impl Fn(&str) -> String) -> Result<(), Fault> {
        match self.all().find(|field| field.0 == name) {
            Some(Field(_, Here)) => Ok(()),
            Some(Field(_, Never(why))) => {
                Err(Fault::new(format!("not a field of {}", self.label), *why))
            }
            None => Err(Fault::new("there is no such field", self.advice(name, rename))),
        }
    }

    fn advice(&self, name: &str, rename: impl Fn(&str) -> String) -> String {
        if let Some(near) = nearest(name, self.names()) {
            return format!("did you mean `{}`?", rename(near));
        }
        let here = self.names().collect::<Vec<_>>().join(", ");
        let here = format!("fields of {}: {here}", self.label);
        let owners = ALL.iter().filter(|fields| fields.names().any(|known| known == name));
        let owners = owners.map(|fields| fields.label).collect::<Vec<_>>();
        match owners.is_empty() {
            true => here,
            false => format!("`{name}` belongs to {}; {here}", owners.join(" or ")),
        }
    }

    /// The names that this version reads.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.all().filter(|field| matches!(field.1, Here)).map(|field| field.0)
    }

    fn all(&self) -> impl Iterator<Item = &'static Field> {
        self.list.iter().chain(self.shared)
    }
}

/// The candidate that `word` was most likely meant to be, if one is near enough.
pub(super) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    /// Longer words are no typing errors, and comparing is quadratic.
    const LENGTH_MAX: usize = 64;
    let plain = |word: &str| word.to_lowercase().replace('-', "_");
    let length = word.chars().count();
    if length > LENGTH_MAX {
        return None;
    }
    let word = plain(word);
    let scored = candidates.into_iter().filter_map(|candidate| {
        let distance = strsim::damerau_levenshtein(&word, &plain(candidate));
        // A third of the letters may be wrong, and one in short words.
        let allowed = (length.max(candidate.chars().count()) / 3).max(1);
        (distance <= allowed && distance < length.max(1)).then_some((distance, candidate))
    });
    scored.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_near() {
        let near = |word| nearest(word, ROUTE.names());
        assert_eq!(near("tll"), Some("ttl"));
        assert_eq!(near("wait-timeout"), Some("wait_timeout"));
        assert_eq!(near("TTL"), Some("ttl"));
        assert_eq!(near("fingerpint"), Some("fingerprint"));
        assert_eq!(near("max_responce_body"), Some("max_response_body"));
        assert_eq!(near("colour"), None);
        assert_eq!(near("x"), None);
        assert_eq!(near(""), None);
        assert_eq!(near(&"t".repeat(10_000)), None);
        assert_eq!(nearest("mod", FINGERPRINT.names()), Some("mode"));
        assert_eq!(nearest("routes", ROOT.names()), Some("route"));
    }
}
