//! Certificates for tests, created on demand. They never expire, unless a test asks for it.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate authority.
pub(crate) struct Authority {
    pub(crate) certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Two authorities with the same name could only be told apart by a signature check.
        let name = key.public_key_raw().iter().map(u8::to_string).collect::<String>();
        params.distinguished_name.push(DnType::OrganizationName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    /// A certificate for one name or address.
    pub(crate) fn issue(&self, name: &str) -> Pair {
        self.issue_with(name, |_| {})
    }

    /// A certificate that has expired.
    pub(crate) fn issue_old(&self, name: &str) -> Pair {
        self.issue_with(name, |params| params.not_after = date_time_ymd(1976, 1, 1))
    }

    /// A certificate that is not valid yet.
    pub(crate) fn issue_early(&self, name: &str) -> Pair {
        self.issue_with(name, |params| params.not_before = date_time_ymd(4000, 1, 1))
    }

    fn issue_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(&self.certificate)).unwrap();
        Arc::new(roots)
    }
}

impl Pair {
    /// Writes both files as a careful operator does: completely, under another name, and then
    /// renamed.
    pub(crate) fn write(&self, folder: &Path) {
        replace(folder, "cert.pem", &self.certificate);
        replace(folder, "key.pem", &self.key);
    }

    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![certificate(&self.certificate)]
    }

    pub(crate) fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }
}

/// Replaces a file atomically.
pub(crate) fn replace(folder: &Path, name: &str, content: &str) {
    let next = folder.join(format!("{name}.next"));
    std::fs::write(&next, content).unwrap();
    std::fs::rename(next, folder.join(name)).unwrap();
}

pub(crate) fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
