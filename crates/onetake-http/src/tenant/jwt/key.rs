//! Keys that verify tokens, each for one algorithm.

use std::fmt;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
    VerificationAlgorithm,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use jsonwebtoken::DecodingKey;
use jsonwebtoken::crypto::aws_lc;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};

/// The shortest secret, in bytes: the length of the HMAC that it makes (RFC 7518, section 3.2).
const SECRET_BYTES_MIN: usize = 32;
/// The shortest modulus of an RSA key, in bytes: 2048 bits.
const RSA_MODULUS_BYTES_MIN: usize = 256;
/// A public RSA key of 2048 bits has more bytes than this, and one of 1024 bits fewer.
const RSA_BYTES_MIN: usize = 256;

/// The signature algorithm of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// RSA (PKCS #1 v1.5) with SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    /// Every algorithm with its name in tokens.
    pub const ALL: [(&'static str, Self); 4] = [
        ("HS256", Self::Hs256),
        ("RS256", Self::Rs256),
        ("ES256", Self::Es256),
        ("EdDSA", Self::EdDsa),
    ];

    /// Returns the algorithm with this name in tokens.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
    }

    /// Returns its name in tokens.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }

    fn of_library(self) -> jsonwebtoken::Algorithm {
        match self {
            Self::Hs256 => jsonwebtoken::Algorithm::HS256,
            Self::Rs256 => jsonwebtoken::Algorithm::RS256,
            Self::Es256 => jsonwebtoken::Algorithm::ES256,
            Self::EdDsa => jsonwebtoken::Algorithm::EdDSA,
        }
    }
}

/// A key that verifies tokens. The kind of the key decides its algorithm.
#[derive(Clone)]
pub struct JwtKey {
    kid: Option<String>,
    algorithm: Algorithm,
    /// The bytes of the key, for comparisons.
    bytes: Vec<u8>,
    key: DecodingKey,
}

/// The reason why a text is not a key. The message never repeats a part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwtKeyError {
    /// Neither PEM nor base64.
    #[error("the value is neither a public key in PEM nor base64")]
    Unknown,
    /// More than one block of PEM.
    #[error("the value has more than one key")]
    Several,
    /// A private key. Tokens are verified with the public one.
    #[error("the value is a private key; use the public key")]
    Private,
    /// A certificate.
    #[error("the value is a certificate; use the public key that it contains")]
    Certificate,
    /// A public key without its PEM lines. Used as a secret, it would be known to everyone.
    #[error("the value is a public key without its BEGIN and END lines")]
    PublicAsSecret,
    /// A secret that is short enough to guess.
    #[error("the secret has fewer than 32 bytes")]
    ShortSecret,
    /// An RSA key that is short enough to factor.
    #[error("the RSA key has fewer than 2048 bits")]
    ShortRsa,
    /// Another kind of key, or a damaged one.
    #[error("the key is damaged, or is not an RSA, EC P-256 or Ed25519 key")]
    Unsupported,
}

impl JwtKey {
    /// Reads a public key in PEM (RSA, EC on P-256, Ed25519), or a secret in base64.
    ///
    /// # Errors
    /// Returns an error if the text is neither.
    pub fn parse(text: &str) -> Result<Self, JwtKeyError> {
        let text = text.trim();
        if text.contains("-----BEGIN") {
            return public(text);
        }
        let secret = decode(text).ok_or(JwtKeyError::Unknown)?;
        if is_public(&secret) {
            return Err(JwtKeyError::PublicAsSecret);
        }
        if secret.len() < SECRET_BYTES_MIN {
            return Err(JwtKeyError::ShortSecret);
        }
        let key = DecodingKey::from_secret(&secret);
        Ok(Self { kid: None, algorithm: Algorithm::Hs256, bytes: secret, key })
    }

    /// Returns the key of a JSON Web Key, or `None` if it is of a kind that is not supported here.
    /// A secret is never accepted from a key set, because every reader of the set could sign tokens
    /// with it.
    pub(super) fn of_jwk(jwk: &Jwk) -> Option<Self> {
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        let (algorithm, bytes) = match &jwk.algorithm {
            AlgorithmParameters::RSA(rsa) => {
                let modulus = decode(&rsa.n)?;
                let significant = modulus.iter().skip_while(|byte| **byte == 0).count();
                if significant < RSA_MODULUS_BYTES_MIN {
                    return None;
                }
                (Algorithm::Rs256, [modulus, decode(&rsa.e)?].concat())
            }
            AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => {
                let point = [vec![4], decode(&ec.x)?, decode(&ec.y)?].concat();
                ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &point).ok()?;
                (Algorithm::Es256, point)
            }
            AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
                let point = decode(&pair.x)?;
                ParsedPublicKey::new(&ED25519, &point).ok()?;
                (Algorithm::EdDsa, point)
            }
            _ => return None,
        };
        let named = match jwk.common.key_algorithm {
            None => Some(algorithm),
            Some(KeyAlgorithm::RS256) => Some(Algorithm::Rs256),
            Some(KeyAlgorithm::ES256) => Some(Algorithm::Es256),
            Some(KeyAlgorithm::EdDSA) => Some(Algorithm::EdDsa),
            Some(_) => None,
        };
        let is_for_signatures =
            matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature));
        if named != Some(algorithm) || !is_for_signatures {
            return None;
        }
        let key = DecodingKey::from_jwk(jwk).ok()?;
        Some(Self { kid: jwk.common.key_id.clone(), algorithm, bytes, key })
    }

    /// Sets the key id. Tokens that name another key id are not verified with this key.
    #[must_use]
    pub fn kid(mut self, kid: impl Into<String>) -> Self {
        self.kid = Some(kid.into());
        self
    }

    /// The algorithm of this key.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// True if the key may have signed a token with this `kid`: the ids are equal, or one of the
    /// two has none.
    pub(super) fn is_called(&self, kid: Option<&str>) -> bool {
        kid.is_none() || self.kid.is_none() || self.kid.as_deref() == kid
    }

    pub(super) fn verifies(&self, signed: &[u8], signature: &[u8]) -> bool {
        // The provider is named explicitly. The default of the crate panics if another crate has
        // chosen a second provider.
        let verifier =
            (aws_lc::DEFAULT_PROVIDER.verifier_factory)(&self.algorithm.of_library(), &self.key);
        verifier.is_ok_and(|verifier| verifier.verify(signed, &signature.to_vec()).is_ok())
    }
}

impl PartialEq for JwtKey {
    fn eq(&self, other: &Self) -> bool {
        self.algorithm == other.algorithm && self.kid == other.kid && self.bytes == other.bytes
    }
}

impl Eq for JwtKey {}

impl fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JwtKey({}, {:?})", self.algorithm.name(), self.kid)
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let alphabets = [&STANDARD, &STANDARD_NO_PAD, &URL_SAFE, &URL_SAFE_NO_PAD];
    alphabets.into_iter().find_map(|alphabet| alphabet.decode(text).ok())
}

/// True if the bytes are a public key without its PEM lines, in any form that libraries write.
fn is_public(bytes: &[u8]) -> bool {
    let forms: [&'static dyn VerificationAlgorithm; 2] =
        [&RSA_PKCS1_2048_8192_SHA256, &ECDSA_P256_SHA256_FIXED];
    let mut forms = forms.into_iter();
    algorithm_of(bytes).is_some() || forms.any(|form| ParsedPublicKey::new(form, bytes).is_ok())
}

/// Reads one block of PEM.
fn public(text: &str) -> Result<JwtKey, JwtKeyError> {
    if text.matches("-----BEGIN").count() > 1 {
        return Err(JwtKeyError::Several);
    }
    let (_, rest) = text.split_once("-----BEGIN ").ok_or(JwtKeyError::Unknown)?;
    let (label, rest) = rest.split_once("-----").ok_or(JwtKeyError::Unknown)?;
    let end = format!("-----END {label}-----");
    let (body, _) = rest.split_once(&end).ok_or(JwtKeyError::Unsupported)?;
    let body: String = body.split_ascii_whitespace().collect();
    let bytes = STANDARD.decode(body).map_err(|_| JwtKeyError::Unsupported);
    let (algorithm, bytes) = match label {
        "PUBLIC KEY" => {
            let bytes = bytes?;
            (algorithm_of(&bytes).ok_or(JwtKeyError::Unsupported)?, bytes)
        }
        "RSA PUBLIC KEY" => (Algorithm::Rs256, bytes?),
        "CERTIFICATE" => return Err(JwtKeyError::Certificate),
        _ if label.ends_with("PRIVATE KEY") => return Err(JwtKeyError::Private),
        _ => return Err(JwtKeyError::Unsupported),
    };
    if algorithm == Algorithm::Rs256 && bytes.len() < RSA_BYTES_MIN {
        return Err(JwtKeyError::ShortRsa);
    }
    let verification: &'static dyn VerificationAlgorithm = match algorithm {
        Algorithm::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
        Algorithm::Es256 => &ECDSA_P256_SHA256_FIXED,
        Algorithm::EdDsa => &ED25519,
        Algorithm::Hs256 => return Err(JwtKeyError::Unsupported),
    };
    ParsedPublicKey::new(verification, &bytes).map_err(|_| JwtKeyError::Unsupported)?;
    let key = match algorithm {
        Algorithm::Rs256 => DecodingKey::from_rsa_der(&bytes),
        Algorithm::Es256 => DecodingKey::from_ec_der(&bytes),
        _ => DecodingKey::from_ed_der(&bytes),
    };
    Ok(JwtKey { kid: None, algorithm, bytes, key })
}

/// Returns the algorithm of a public key (a SubjectPublicKeyInfo, RFC 5280), by the identifier at
/// its start.
fn algorithm_of(der: &[u8]) -> Option<Algorithm> {
    const RSA: &[u8] = b"\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";
    const P256: &[u8] =
        b"\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
    const ED: &[u8] = b"\x30\x05\x06\x03\x2b\x65\x70";
    // A DER sequence, whose length takes up to three bytes.
    let [0x30, rest @ ..] = der else { return None };
    let inside = match rest {
        [0x82, _, _, inside @ ..] | [0x81, _, inside @ ..] => inside,
        [_, inside @ ..] => inside,
        [] => return None,
    };
    let known = [(RSA, Algorithm::Rs256), (P256, Algorithm::Es256), (ED, Algorithm::EdDsa)];
    known.into_iter().find(|(prefix, _)| inside.starts_with(prefix)).map(|(_, what)| what)
}
