//! TLS connections to the server.

use std::sync::Arc;

use onetake_core::{StoreError, StoreErrorKind};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::Tls;

/// Returns the connector that the URL asks for.
pub(super) fn connector(tls: &Tls) -> Result<MakeRustlsConnect, StoreError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid("TLS cannot be configured".into()).with_source(error))?;
    let config = match tls {
        Tls::VerifyFull(file) => {
            let mut roots = RootCertStore::empty();
            match file {
                Some(file) => {
                    let bad = || {
                        let what = "no certificates could be read from";
                        invalid(format!("sslrootcert: {what} {}", file.display()))
                    };
                    let certificates =
                        CertificateDer::pem_file_iter(file).map_err(|e| bad().with_source(e))?;
                    for certificate in certificates {
                        let certificate = certificate.map_err(|e| bad().with_source(e))?;
                        roots.add(certificate).map_err(|e| bad().with_source(e))?;
                    }
                }
                None => {
                    let found = rustls_native_certs::load_native_certs();
                    let (_added, _ignored) = roots.add_parsable_certificates(found.certs);
                }
            }
            if roots.is_empty() {
                return Err(invalid(
                    "no root certificate was found to verify the server: add sslrootcert=FILE to \
                     the URL"
                        .into(),
                ));
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        Tls::Off | Tls::Prefer | Tls::Require => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
            .with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn invalid(what: String) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, what)
}

/// Accepts any certificate, as `sslmode=prefer` and `require` do everywhere. It protects against
/// eavesdropping, but not against a false server. `doctor` reports that.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
