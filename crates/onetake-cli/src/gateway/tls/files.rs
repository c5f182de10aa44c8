//! Certificates and keys from PEM files. No error message quotes a file: it may hold a key.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use onetake_core::Clock;
use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_cert::der::Decode;

use crate::config::Identity;

use super::{plain, provider};

/// Maximum size of a file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The error of a TLS setting or one of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFailed {
    field: String,
    file: Option<PathBuf>,
    what: String,
    fix: &'static str,
}

impl TlsFailed {
    pub(super) fn new(
        field: impl Into<String>,
        file: Option<&Path>,
        what: impl Into<String>,
        fix: &'static str,
    ) -> Self {
        Self { field: field.into(), file: file.map(Into::into), what: what.into(), fix }
    }
}

impl fmt::Display for TlsFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        if let Some(file) = &self.file {
            write!(f, " = \"{}\"", file.display())?;
        }
        write!(f, ": {}. {}", self.what, self.fix)
    }
}

impl std::error::Error for TlsFailed {}

/// Reads files and remembers their contents, so that a rewrite with the same content is not a
/// change.
///
/// It has no `Debug`, because some of them are keys.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Files {
    contents: Vec<Vec<u8>>,
    /// Expiry of the certificate among the files, since 1970.
    pub(super) expires: Option<Duration>,
}

impl Files {
    /// Reads a certificate with its chain and its key. Checks that they belong together and are
    /// valid now.
    pub(super) fn identity(
        &mut self,
        table: &str,
        identity: &Identity,
        clock: &dyn Clock,
    ) -> Result<Arc<CertifiedKey>, TlsFailed> {
        let field = format!("{table}.certificate");
        let chain = self.certificates(&field, &identity.certificate)?;
        let key = self.key(&format!("{table}.private_key"), &identity.private_key)?;
        if let Some(leaf) = chain.first() {
            self.expires = check_validity(leaf, clock).map_err(|what| {
                let fix = "Replace it with a valid certificate";
                TlsFailed::new(&*field, Some(&identity.certificate), what, fix)
            })?;
        }
        let made = CertifiedKey::from_der(chain, key, &provider());
        made.map(Arc::new).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => TlsFailed::new(
                format!("{table}.private_key"),
                Some(&identity.private_key),
                format!(
                    "the key does not belong to the certificate {}",
                    identity.certificate.display()
                ),
                "Name the key of the certificate, and put the certificate itself first in its file",
            ),
            rustls::Error::InvalidCertificate(_) => {
                let fix = "Name a file with the certificate itself first, in PEM";
                TlsFailed::new(&*field, Some(&identity.certificate), plain(&error), fix)
            }
            error => {
                let fix = "Name a file with an RSA, ECDSA or Ed25519 key, in PEM";
                TlsFailed::new(
                    format!("{table}.private_key"),
                    Some(&identity.private_key),
                    plain(&error),
                    fix,
                )
            }
        })
    }

    /// Reads every certificate of a file as a root.
    pub(super) fn roots(&mut self, field: &str, file: &Path) -> Result<RootCertStore, TlsFailed> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(field, file)? {
            roots.add(certificate).map_err(|error| {
                let fix = "Name a file with the certificates of certificate authorities, in PEM";
                TlsFailed::new(field, Some(file), plain(&error), fix)
            })?;
        }
        Ok(roots)
    }

    /// Reads at least one certificate.
    fn certificates(
        &mut self,
        field: &str,
        file: &Path,
    ) -> Result<Vec<CertificateDer<'static>>, TlsFailed> {
        let content = self.read(field, file)?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(content).collect();
        let what = match found {
            Ok(found) if !found.is_empty() => return Ok(found),
            Ok(_) | Err(pem::Error::NoItemsFound) => "the file has no certificate",
            Err(_) => "the file is truncated, or is not PEM",
        };
        let fix = "Name a file with -----BEGIN CERTIFICATE----- in it";
        Err(TlsFailed::new(field, Some(file), what, fix))
    }

    fn key(&mut self, field: &str, file: &Path) -> Result<PrivateKeyDer<'static>, TlsFailed> {
        const ENCRYPTED: &[u8] = b"BEGIN ENCRYPTED PRIVATE KEY";
        let content = self.read(field, file)?;
        let is_encrypted = content.windows(ENCRYPTED.len()).any(|part| part == ENCRYPTED);
        let what = match PrivateKeyDer::from_pem_slice(content) {
            Ok(key) => return Ok(key),
            Err(pem::Error::NoItemsFound) if is_encrypted => {
                let fix = "Name a file with the key without a password (`openssl pkey`), which \
                           only this process may read";
                return Err(TlsFailed::new(
                    field,
                    Some(file),
                    "the key is encrypted with a password",
                    fix,
                ));
            }
            Err(pem::Error::NoItemsFound) => "the file has no private key",
            Err(_) => "the file is truncated, or is not PEM",
        };
        let fix = "Name a file with -----BEGIN PRIVATE KEY----- in it";
        Err(TlsFailed::new(field, Some(file), what, fix))
    }

    pub(super) fn read(&mut self, field: &str, file: &Path) -> Result<&[u8], TlsFailed> {
        let content = read(file).map_err(|what| {
            TlsFailed::new(field, Some(file), what, "Name a file that this process can read")
        })?;
        self.contents.push(content);
        Ok(self.contents.last().map(Vec::as_slice).unwrap_or_default())
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| format!("the file cannot be read: {error}");
    // Checked before opening, because opening a pipe would block.
    if !std::fs::metadata(file).map_err(cannot)?.is_file() {
        return Err("the path is not a regular file".to_owned());
    }
    let mut content = Vec::new();
    let file = File::open(file).map_err(cannot)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(cannot)?;
    match u64::try_from(content.len()).is_ok_and(|length| length <= FILE_BYTES_MAX) {
        true => Ok(content),
        false => Err(format!("the file is larger than {FILE_BYTES_MAX} bytes")),
    }
}

/// Returns when a certificate expires, or an error if it is not valid now. A certificate that
/// cannot be parsed here is left to rustls.
fn check_validity(
    certificate: &CertificateDer<'_>,
    clock: &dyn Clock,
) -> Result<Option<Duration>, String> {
    let Ok(certificate) = x509_cert::Certificate::from_der(certificate) else {
        return Ok(None);
    };
    let validity = certificate.tbs_certificate.validity;
    let now = Duration::from_micros(clock.now().as_micros());
    let expires = validity.not_after.to_unix_duration();
    if now > expires {
        return Err(format!("the certificate expired at {}", validity.not_after));
    }
    if now < validity.not_before.to_unix_duration() {
        return Err(format!("the certificate is not valid before {}", validity.not_before));
    }
    Ok(Some(expires))
}
