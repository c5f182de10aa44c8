//! `tls` and `upstream_tls`: which files prove who somebody is. They are read when the gateway
//! starts, and again when they change.

use std::path::PathBuf;

use super::error::{Fault, Problems};
use super::fields;
use super::reader::{Section, Value};

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate in PEM, followed by those that signed it.
    pub certificate: PathBuf,
    /// Its private key in PEM.
    pub key: PathBuf,
}

/// `upstream_tls`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTls {
    /// The only roots to check upstreams by; none: those that the system trusts.
    pub roots: Option<PathBuf>,
    /// Who the gateway is to upstreams that ask.
    pub identity: Option<Identity>,
}

/// `tls = { … }`
pub(super) fn read_identity(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<Identity> {
    const EXAMPLE: &str = "{ certificate = \"cert.pem\", key = \"key.pem\" }";
    let table = Section::open(value, &fields::TLS, EXAMPLE, problems)?;
    if table.get("certificate").is_none() && table.get("key").is_none() && !table.has_faults() {
        let fault = Fault::new("names no certificate and no key", format!("write tls = {EXAMPLE}"));
        value.refuse(fault, problems);
    }
    identity(value, &table, problems)
}

/// `upstream_tls = { … }`
pub(super) fn read_upstream(value: &Value<'_>, problems: &mut Problems<'_>) -> UpstreamTls {
    let example = "{ roots = \"ca.pem\" }";
    let Some(table) = Section::open(value, &fields::UPSTREAM_TLS, example, problems) else {
        return UpstreamTls::default();
    };
    let roots = table.get("roots").and_then(|value| file(&value, "\"ca.pem\"", problems));
    UpstreamTls { roots, identity: identity(value, &table, problems) }
}

/// Both, or neither: one without the other is of no use.
fn identity(
    value: &Value<'_>,
    table: &Section<'_>,
    problems: &mut Problems<'_>,
) -> Option<Identity> {
    let (certificate, key) = (table.get("certificate"), table.get("key"));
    let lonely = match (&certificate, &key) {
        (Some(_), None) => Some(("key", "certificate")),
        (None, Some(_)) => Some(("certificate", "key")),
        _ => None,
    };
    // A misspelt name may have been meant for it.
    if let Some((missing, there)) = lonely.filter(|_| !table.has_faults()) {
        let what = format!("it is missing, and `{there}` is of no use without it");
        let fix = format!("write for example {missing} = \"{missing}.pem\" beside it");
        problems.add(&value.node.at, &table.path_of(missing), None, Fault::new(what, fix));
    }
    let certificate = certificate.and_then(|value| file(&value, "\"certificate.pem\"", problems));
    let key = key.and_then(|value| file(&value, "\"key.pem\"", problems));
    Some(Identity { certificate: certificate?, key: key? })
}

pub(super) fn file(
    value: &Value<'_>,
    example: &str,
    problems: &mut Problems<'_>,
) -> Option<PathBuf> {
    value.parse(example, problems, |text| match text {
        "" => Err(Fault::new("names no file", format!("write for example {example}"))),
        // Somebody pasted it. It may be the key: nothing of it is repeated.
        _ if text.contains("-----BEGIN") => {
            let fault = Fault::new("not a file's name", "write it to a file, and the name here");
            Err(fault.hiding_value(true))
        }
        _ => Ok(PathBuf::from(text)),
    })
}
