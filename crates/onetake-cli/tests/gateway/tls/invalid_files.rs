//! Invalid files are refused at the start, with the field, the file and the fix.

use std::path::Path;
use std::process::Command;

use onetake_cli::config::{self, Overrides};
use onetake_cli::gateway::{Gateway, StartError};

use super::certificates::Authority;
use super::{configuration, tls_of};

/// The error of `serve`; `check` reports the same.
async fn refused(lines: &str) -> String {
    let configuration = configuration(lines);
    let config =
        config::load(Some(&configuration), "test", std::iter::empty(), Overrides::default());
    let said = match Gateway::start(config.unwrap()).await {
        Err(StartError::Tls(error)) => error.to_string(),
        other => panic!("{lines}: {other:?}"),
    };
    assert_eq!(check(lines), (2, String::new(), format!("onetake: {said}\n")));
    said
}

/// Runs `onetake check`. Returns its exit code, standard output and standard error.
fn check(lines: &str) -> (i32, String, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), configuration(lines)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_onetake"));
    let output = command.arg("check").arg("--config").arg(file.path()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn says(said: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| said.contains(part)), "{said}: {parts:?}");
}

#[tokio::test]
async fn a_certificate_or_key_that_is_of_no_use() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let (right, other) = (authority.issue("localhost"), authority.issue("localhost"));
    let (old, early) = (authority.issue_old("localhost"), authority.issue_early("localhost"));
    let half = &right.certificate[..right.certificate.len() / 2];
    let half_key = &right.key[..right.key.len() / 2];
    let rubbish = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let rubbish_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let locked =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let both = format!("{}{}", authority.certificate, right.certificate);
    let large = format!("{}{}", "#".repeat(2 << 20), right.certificate);
    let (certificate, key) = ("gateway.tls.certificate", "gateway.tls.private_key");
    for (one, two, field, what) in [
        ("", &*right.key, certificate, "the file has no certificate"),
        (&*right.key, &right.key, certificate, "the file has no certificate"),
        (half, &right.key, certificate, "truncated"),
        (rubbish, &right.key, certificate, "not valid"),
        (&large, &right.key, certificate, "larger than"),
        (&old.certificate, &old.key, certificate, "expired at 1976-01-01T00:00:00Z"),
        (&early.certificate, &early.key, certificate, "not valid before 4000-01-01T00:00:00Z"),
        (&right.certificate, "", key, "the file has no private key"),
        (&right.certificate, &right.certificate, key, "the file has no private key"),
        (&right.certificate, half_key, key, "truncated"),
        (&right.certificate, rubbish_key, key, "Ed25519"),
        (&right.certificate, locked, key, "encrypted with a password"),
        (&right.certificate, &other.key, key, "does not belong to"),
        // The authority's certificate comes first, and the key belongs to another one.
        (&both, &right.key, key, "itself first"),
    ] {
        std::fs::write(folder.path().join("cert.pem"), one).unwrap();
        std::fs::write(folder.path().join("key.pem"), two).unwrap();
        let lines = format!("upstream = \"http://127.0.0.1:1\"\n{}", tls_of(folder.path()));
        let said = refused(&lines).await;
        let file = if field == certificate { "cert.pem" } else { "key.pem" };
        says(&said, &[field, file, what]);
        let secret = right.key.lines().nth(1).unwrap();
        assert!(!said.contains(&secret[..16]), "it repeats the key: {said}");
    }
    right.write(folder.path());
    for (name, field) in [("cert.pem", certificate), ("key.pem", key)] {
        let lines = format!("upstream = \"http://127.0.0.1:1\"\n{}", tls_of(folder.path()));
        let path = folder.path().join(name);
        let kept = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        says(&refused(&lines).await, &[field, name, "No such file", "can read"]);
        std::fs::create_dir(&path).unwrap();
        says(&refused(&lines).await, &[field, name, "not a regular file"]);
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, kept).unwrap();
    }
}

#[tokio::test]
async fn roots_or_client_certificates_that_are_of_no_use() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let (right, old) = (authority.issue("gateway"), authority.issue_old("gateway"));
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("ca.pem", &authority.certificate);
    write("empty.pem", "nothing\n");
    right.write(folder.path());
    write("old.pem", &old.certificate);
    write("old.key", &old.key);
    let table = "gateway.upstream_tls";
    for (fields, parts) in [
        (vec![("roots", "nowhere.pem")], ["roots", "nowhere.pem", "No such file"]),
        (vec![("roots", "empty.pem")], ["roots", "empty.pem", "no certificate"]),
        (
            vec![("roots", "ca.pem"), ("certificate", "old.pem"), ("private_key", "old.key")],
            ["certificate", "old.pem", "expired"],
        ),
        (
            vec![("roots", "ca.pem"), ("certificate", "cert.pem"), ("private_key", "old.key")],
            ["private_key", "old.key", "does not belong to"],
        ),
    ] {
        let said = refused(&upstream_tls(folder.path(), &fields)).await;
        says(&said, &parts);
        says(&said, &[&format!("{table}.{}", parts[0])]);
    }
}

#[test]
fn check_reads_what_serve_would_read_and_tells_of_both_sides() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    std::fs::write(folder.path().join("ca.pem"), &authority.certificate).unwrap();
    let (clients, right) =
        (tls_of(folder.path()), upstream_tls(folder.path(), &[("roots", "ca.pem")]));
    let wrong = upstream_tls(folder.path(), &[("roots", "nowhere.pem")]);
    let (code, said, errors) = check(&format!("{wrong}\n{clients}"));
    assert_eq!((code, said.as_str()), (2, ""));
    let told: Vec<_> = errors.split("\n\n").collect();
    assert_eq!(told.len(), 2, "{errors}");
    says(told[0], &["gateway.tls.certificate = ", "cert.pem", "No such file", "can read"]);
    says(told[1], &["gateway.upstream_tls.roots = ", "nowhere.pem", "No such file", "can read"]);

    authority.issue("localhost").write(folder.path());
    let (code, said, errors) = check(&format!("{right}\n{clients}"));
    assert!(code == 0 && said.contains("fine") && errors.is_empty(), "{said}{errors}");
    // Unused files are not read; but a warning says that they are unused.
    let unread = wrong.replace("https://", "http://");
    let (code, said, errors) = check(&unread);
    assert!(code == 0 && said.contains("has no effect"), "{said}{errors}");
    let asked = "[defaults]\ntenant = { forward_auth = \"https://localhost\" }";
    let (code, _, errors) = check(&format!("{unread}\n{asked}"));
    assert!(code == 2 && errors.contains("nowhere.pem"), "{errors}");
}

/// An upstream with TLS and these files of a folder.
fn upstream_tls(folder: &Path, fields: &[(&str, &str)]) -> String {
    let field =
        |(name, file): &(&str, &str)| format!("{name} = \"{}\"", folder.join(file).display());
    let fields = fields.iter().map(field).collect::<Vec<_>>().join(", ");
    format!("upstream = \"https://127.0.0.1:1\"\nupstream_tls = {{ {fields} }}")
}
