//! Arguments of `onetake probe`, and the settings that are made from them.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};

use super::report::CHECKS;

/// The placeholder for a fresh number in a body.
pub(super) const FRESH: &str = "{fresh}";
/// Default of `--body`.
const BODY_DEFAULT: &str = "{\"probe\":\"{fresh}\"}";

/// Check whether an HTTP API is idempotent: send requests, retries and malformed keys to it.
///
/// Warning: the probe runs operations, about fifteen on an idempotent API and fifty on another one.
/// Use an API whose operations cost nothing.
#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// The URL of an operation, such as http://127.0.0.1:8080/charges.
    url: String,
    /// The method.
    #[arg(long, default_value = "POST")]
    method: String,
    /// The body. Each {fresh} in it becomes a new number.
    #[arg(long, value_name = "TEXT", default_value = BODY_DEFAULT)]
    body: String,
    /// Another valid body, to send under a known key (default: --body with another number).
    #[arg(long, value_name = "TEXT")]
    other_body: Option<String>,
    /// A body with which the operation fails with an error status.
    #[arg(long, value_name = "TEXT")]
    error_body: Option<String>,
    /// The URL of another operation, to send a known key to.
    #[arg(long, value_name = "URL")]
    other_url: Option<String>,
    /// A header of every request, such as "Accept: application/json". Can be repeated.
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The header with the credential of the first client, such as "Authorization: Bearer A".
    #[arg(
        long,
        value_name = "NAME: VALUE",
        env = "ONETAKE_PROBE_CREDENTIAL",
        hide_env_values = true
    )]
    credential: Option<String>,
    /// The header with the credential of a second client.
    #[arg(
        long,
        value_name = "NAME: VALUE",
        env = "ONETAKE_PROBE_OTHER_CREDENTIAL",
        hide_env_values = true,
        requires = "credential"
    )]
    other_credential: Option<String>,
    /// The header with the key.
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key")]
    key_header: String,
    /// The API may run requests without a key.
    #[arg(long)]
    key_optional: bool,
    /// A URL that answers how many operations have run: a number, or JSON with --count-pointer.
    #[arg(long, value_name = "URL")]
    count: Option<String>,
    /// The JSON pointer to the number in the answer of --count. An array counts its elements.
    #[arg(long, value_name = "POINTER", default_value = "", requires = "count")]
    count_pointer: String,
    /// The JSON pointer to the id of an operation in its response (default: the whole body).
    #[arg(long, value_name = "POINTER")]
    id_pointer: Option<String>,
    /// The number of requests at once, from 2 to 100.
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u16).range(2..=100))]
    at_once: u16,
    /// The timeout of one request in seconds, from 1 to 60.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    timeout: u64,
    /// The time limit of the whole run in seconds, from 1 to 600.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=600))]
    limit: u64,
    /// Leave out a check. Can be repeated.
    #[arg(long, value_name = "CHECK", value_parser = CHECKS.map(|check| check.name))]
    skip: Vec<String>,
    /// Print JSON, for scripts.
    #[arg(long)]
    pub(super) json: bool,
    /// Write a JUnit report to this file as well.
    #[arg(long, value_name = "FILE")]
    pub(super) junit: Option<PathBuf>,
    /// Allow a target that is not on this machine. You must own the API, or be allowed to test it.
    #[arg(long)]
    i_own_this: bool,
}

/// A header of one client.
pub(super) type Credential = (HeaderName, HeaderValue);

/// The checked arguments.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) url: Uri,
    pub(super) method: Method,
    pub(super) body: String,
    pub(super) other_body: Option<String>,
    pub(super) error_body: Option<String>,
    pub(super) other_url: Option<Uri>,
    pub(super) headers: HeaderMap,
    pub(super) credential: Option<Credential>,
    pub(super) other_credential: Option<Credential>,
    pub(super) key_header: HeaderName,
    pub(super) key_optional: bool,
    pub(super) count: Option<Uri>,
    pub(super) count_pointer: String,
    pub(super) id_pointer: Option<String>,
    pub(super) at_once: usize,
    pub(super) timeout: Duration,
    pub(super) limit: Duration,
    pub(super) skip: Vec<String>,
}

impl Probe {
    /// Checks the arguments. An error names the argument, its value and the fix.
    pub(super) fn settings(&self) -> Result<Settings, String> {
        let uri = |flag, text: &String| url(flag, text, self.i_own_this);
        let optional =
            |flag, text: &Option<String>| text.as_ref().map(|text| uri(flag, text)).transpose();
        let secret = |flag, text: &Option<String>| {
            text.as_ref().map(|text| credential(flag, text)).transpose()
        };
        let mut headers = HeaderMap::new();
        for text in &self.headers {
            let (name, value) = header_line("--header", text)?;
            headers.append(name, value);
        }
        if !headers.contains_key(header::CONTENT_TYPE) {
            let json = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, json);
        }
        let key_header = self.key_header.parse().map_err(|_| {
            format!(
                "--key-header {}: write a header's name, such as Idempotency-Key",
                self.key_header
            )
        })?;
        let method = self
            .method
            .parse()
            .map_err(|_| format!("--method {}: write a method, such as POST", self.method))?;
        let has_fresh = self.body.contains(FRESH);
        let default_other = || has_fresh.then(|| self.body.clone());
        pointer("--count-pointer", Some(&self.count_pointer))?;
        pointer("--id-pointer", self.id_pointer.as_ref())?;
        Ok(Settings {
            url: uri("URL", &self.url)?,
            method,
            body: self.body.clone(),
            other_body: self.other_body.clone().or_else(default_other),
            error_body: self.error_body.clone(),
            other_url: optional("--other-url", &self.other_url)?,
            headers,
            credential: secret("--credential", &self.credential)?,
            other_credential: secret("--other-credential", &self.other_credential)?,
            key_header,
            key_optional: self.key_optional,
            count: optional("--count", &self.count)?,
            count_pointer: self.count_pointer.clone(),
            id_pointer: self.id_pointer.clone(),
            at_once: self.at_once.into(),
            timeout: Duration::from_secs(self.timeout),
            limit: Duration::from_secs(self.limit),
            skip: self.skip.clone(),
        })
    }
}

impl Settings {
    /// True if any URL is `https://`.
    pub(super) fn is_encrypted(&self) -> bool {
        let urls = [Some(&self.url), self.other_url.as_ref(), self.count.as_ref()];
        urls.into_iter().flatten().any(|url| url.scheme_str() == Some("https"))
    }

    /// Removes the credentials from a text.
    pub(super) fn without_credentials(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (_, value) in [&self.credential, &self.other_credential].into_iter().flatten() {
            let Ok(value) = value.to_str() else { continue };
            let token = value.rsplit(' ').next().unwrap_or_default();
            for secret in [value, token].into_iter().filter(|secret| !secret.is_empty()) {
                text = text.replace(secret, "***");
            }
        }
        text
    }
}

/// Renders a body: each placeholder becomes the number.
pub(super) fn render(template: &str, fresh: u32) -> Bytes {
    Bytes::from(template.replace(FRESH, &fresh.to_string()))
}

fn url(flag: &str, text: &str, is_owned: bool) -> Result<Uri, String> {
    let uri: Option<Uri> = text.parse().ok();
    let uri = uri
        .filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some())
        .ok_or_else(|| {
            format!("{flag} {text}: write a whole URL, such as http://127.0.0.1:8080/charges")
        })?;
    if uri.authority().is_some_and(|host| host.as_str().contains('@')) {
        return Err(format!("{flag}: a URL cannot hold a password; use --credential"));
    }
    match is_owned || crate::keys::is_loopback(&uri) {
        true => Ok(uri),
        false => Err(format!(
            "{flag} {text} is not on this machine. The probe runs operations and sends malformed \
             requests. If you own this API, add --i-own-this"
        )),
    }
}

fn header_line(flag: &str, text: &str) -> Result<Credential, String> {
    let wrong = || format!("{flag} \"{text}\": write \"Name: value\"");
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
    let value: HeaderValue = value.trim().parse().map_err(|_| wrong())?;
    Ok((name, value))
}

/// Reads a credential. Its error does not show the text.
fn credential(flag: &str, text: &str) -> Result<Credential, String> {
    let read = header_line(flag, text);
    let (name, mut value) = read.map_err(|_| {
        format!("{flag}: write a whole header, such as \"Authorization: Bearer TOKEN\"")
    })?;
    value.set_sensitive(true);
    Ok((name, value))
}

fn pointer(flag: &str, text: Option<&String>) -> Result<(), String> {
    match text {
        Some(text) if !text.is_empty() && !text.starts_with('/') => {
            Err(format!("{flag} {text}: a JSON pointer begins with a slash, such as /id"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        probe: Probe,
    }

    fn settings(arguments: &[&str]) -> Result<Settings, String> {
        let arguments = ["probe"].iter().chain(arguments);
        let parsed = Command::try_parse_from(arguments).map_err(|error| error.to_string())?;
        parsed.probe.settings()
    }

    #[test]
    fn targets_that_are_not_loopback_need_a_word_of_their_owner() {
        for local in
            ["http://127.0.0.1:1/a", "https://localhost/a", "http://[::1]:2", "http://127.9.9.9"]
        {
            assert!(settings(&[local]).is_ok(), "{local}");
        }
        for remote in [
            "http://10.0.0.1/a",
            "http://0.0.0.0/a",
            "https://example.com/a",
            "http://127.0.0.1.example.com/",
            "http://localhost.example.com/",
            "http://[::ffff:10.0.0.1]/",
        ] {
            let refused = settings(&[remote]).unwrap_err();
            assert!(refused.contains(remote) && refused.contains("--i-own-this"), "{refused}");
            assert!(settings(&[remote, "--i-own-this"]).is_ok(), "{remote}");
            for flag in ["--other-url", "--count"] {
                let refused = settings(&["http://127.0.0.1/", flag, remote]).unwrap_err();
                assert!(refused.contains(flag) && refused.contains("--i-own-this"), "{refused}");
            }
        }
    }

    #[test]
    fn a_wrong_argument_is_named_with_its_fix_and_no_secret_is_shown() {
        let url = "http://127.0.0.1:1/a";
        for (arguments, part) in [
            (vec!["127.0.0.1:1"], "write a whole URL"),
            (vec!["ftp://127.0.0.1"], "write a whole URL"),
            (vec!["http://me:hunter2@127.0.0.1/"], "use --credential"),
            (vec![url, "--header", "novalue"], "write \"Name: value\""),
            (vec![url, "--credential", "hunter2"], "Authorization: Bearer TOKEN"),
            (vec![url, "--key-header", "a b"], "such as Idempotency-Key"),
            (vec![url, "--method", "P T"], "such as POST"),
            (vec![url, "--at-once", "101"], "101"),
            (vec![url, "--at-once", "1"], "1"),
            (vec![url, "--timeout", "0"], "0"),
            (vec![url, "--limit", "601"], "601"),
            (vec![url, "--count", url, "--count-pointer", "n"], "begins with a slash"),
            (vec![url, "--id-pointer", "id"], "begins with a slash"),
            (vec![url, "--count-pointer", "/n"], "--count"),
            (vec![url, "--other-credential", "a: b"], "--credential"),
            (vec![url, "--skip", "everything"], "everything"),
        ] {
            let refused = settings(&arguments).unwrap_err();
            assert!(refused.contains(part), "{arguments:?}: {refused}");
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }

    #[test]
    fn bodies_and_credentials() {
        let url = "http://127.0.0.1:1/a";
        assert_eq!(render("{\"a\":{fresh},\"b\":\"{fresh}\"}", 7), "{\"a\":7,\"b\":\"7\"}");
        assert_eq!(settings(&[url]).unwrap().other_body.as_deref(), Some(BODY_DEFAULT));
        assert_eq!(settings(&[url, "--body", "10"]).unwrap().other_body, None);
        let credentials = ["--credential", "authorization: Bearer s3cret"];
        let settings = settings(&[[url].as_slice(), &credentials].concat()).unwrap();
        assert_eq!(settings.without_credentials("by s3cret, Bearer s3cret"), "by ***, ***");
        assert_eq!(settings.headers["content-type"], "application/json");
        assert!(!format!("{settings:?}").contains("s3cret"));
    }
}
