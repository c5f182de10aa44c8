//! Issuers of tokens, one for each algorithm.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RsaPublicKeyComponents,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use onetake_http::JwtKey;
use serde_json::{Value, json};

/// A signer of tokens.
pub(crate) enum Issuer {
    Hs256(Vec<u8>),
    Rs256(rsa::KeyPair),
    Es256(EcdsaKeyPair),
    EdDsa(Ed25519KeyPair),
}

impl Issuer {
    pub(crate) fn hs256(byte: u8) -> Self {
        Self::Hs256(vec![byte; 32])
    }

    pub(crate) fn rs256() -> Self {
        Self::Rs256(rsa::KeyPair::generate(rsa::KeySize::Rsa2048).unwrap())
    }

    pub(crate) fn es256() -> Self {
        Self::Es256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    pub(crate) fn eddsa() -> Self {
        Self::EdDsa(Ed25519KeyPair::generate().unwrap())
    }

    pub(crate) fn all() -> [Self; 4] {
        [Self::hs256(7), Self::rs256(), Self::es256(), Self::eddsa()]
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match self {
            Self::Hs256(_) => "HS256",
            Self::Rs256(_) => "RS256",
            Self::Es256(_) => "ES256",
            Self::EdDsa(_) => "EdDSA",
        }
    }

    /// The public key without its PEM lines; empty for a secret.
    pub(crate) fn der(&self) -> Vec<u8> {
        let der: PublicKeyX509Der<'static> = match self {
            Self::Hs256(_) => return Vec::new(),
            Self::Rs256(pair) => pair.public_key().as_der().unwrap(),
            Self::Es256(pair) => pair.public_key().as_der().unwrap(),
            Self::EdDsa(pair) => pair.public_key().as_der().unwrap(),
        };
        der.as_ref().to_vec()
    }

    /// The text with which a verifier is configured.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Hs256(secret) => STANDARD.encode(secret),
            _ => pem("PUBLIC KEY", &self.der()),
        }
    }

    pub(crate) fn key(&self) -> JwtKey {
        JwtKey::parse(&self.text()).unwrap()
    }

    /// The public key as a JSON Web Key; for HS256 the secret.
    pub(crate) fn jwk(&self, kid: &str) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Hs256(secret) => json!({ "kty": "oct", "kid": kid, "k": text(secret) }),
            Self::Rs256(pair) => {
                let public = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public_key());
                json!({ "kty": "RSA", "kid": kid, "n": text(&public.n), "e": text(&public.e) })
            }
            Self::Es256(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({ "kty": "EC", "crv": "P-256", "kid": kid, "x": text(x), "y": text(y) })
            }
            Self::EdDsa(pair) => {
                let x = text(pair.public_key().as_ref());
                json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x })
            }
        }
    }

    fn signature(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Hs256(secret) => {
                hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message).as_ref().to_vec()
            }
            Self::Rs256(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
            Self::Es256(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::EdDsa(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// Signs a token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({ "alg": self.algorithm(), "typ": "JWT" }), claims)
    }

    /// Signs a token with this header, which may be false.
    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
        self.token_of(&header.to_string(), &claims.to_string())
    }

    pub(crate) fn token_of(&self, header: &str, claims: &str) -> String {
        let signed =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = self.signature(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let lines: Vec<_> =
        body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
