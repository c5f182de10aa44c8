//! `check`, `schema`, `completions`, `migrate` and `doctor`, as commands.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::process::Command;

/// Runs the binary. Returns its exit code, standard output and standard error.
fn onetake(arguments: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onetake"));
    let output = command.args(arguments).envs(variables.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn doctor_says_what_the_memory_store_is_good_for() {
    let (code, said, _) = onetake(&["doctor", "--store", "memory:"], &[]);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("broken     the memory store loses all keys when the process ends"),
        "{said}"
    );
    assert!(said.contains("Operations could be lost or repeated"), "{said}");
    let (code, said, _) = onetake(&["doctor", "--store", "memory:", "--format", "json"], &[]);
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, found["worst"].as_str()), (1, Some("broken")));
}

#[test]
fn doctor_measures_a_folder_and_leaves_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let file = folder.path().join("onetake.toml");
    // `doctor` needs no upstream.
    std::fs::write(&file, format!("[store]\nurl = \"embedded:{}\"\n", data.display())).unwrap();
    let (code, said, _) = onetake(&["doctor", "--config", file.to_str().unwrap()], &[]);
    assert!(code == 0 || said.contains("a reboot deletes"), "{said}");
    for part in ["round trip", "MiB are free", "durable", "does not exist yet"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let sqlite = format!("sqlite:{}", data.display());
    let (code, said, errors) = onetake(&["doctor", "--store", &sqlite], &[]);
    assert!(code != 3 && said.contains("does not exist yet"), "{said}{errors}");
    assert!(!data.exists());
}

#[test]
fn a_store_that_cannot_be_reached_is_exit_code_three_and_shows_no_password() {
    // Port 1 has no listener.
    for url in ["postgres://me:hunter2@127.0.0.1:1/x", "redis://:hunter2@127.0.0.1:1"] {
        for command in ["doctor", "serve"] {
            let upstream = ["--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0"];
            let admin = ["--admin-listen", "127.0.0.1:0"];
            let mut arguments = vec![command, "--store", url];
            if command == "serve" {
                arguments.extend(upstream.iter().chain(&admin));
            }
            let (code, said, errors) = onetake(&arguments, &[("ONETAKE_LOG", "trace")]);
            assert_eq!(code, 3, "{said}{errors}");
            assert!(errors.contains(":***@127.0.0.1:1"), "{errors}");
            assert!(!format!("{said}{errors}").contains("hunter2"), "{said}{errors}");
        }
    }
    let arguments = ["doctor", "--format", "json"];
    let variables = [("ONETAKE__STORE__URL", "postgres://me:hunter2@127.0.0.1:1/x")];
    let (code, said, _) = onetake(&arguments, &variables);
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(code == 3 && found["error"].as_str().unwrap().contains("me:***@127.0.0.1:1"), "{said}");
}

#[test]
fn migrations_are_written_as_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    for (naming, first) in [("sqlx", "0001_onetake.sql"), ("flyway", "V1__onetake.sql")] {
        for said in ["was written", "already exists"] {
            let (code, out, errors) =
                onetake(&["migrate", "--write", &path, "--naming", naming], &[]);
            assert_eq!(code, 0, "{errors}");
            assert_eq!(out.matches(said).count(), 3, "{out}");
        }
        let file = folder.path().join(first);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("CREATE TABLE onetake_records") && !text.contains("{{"), "{text}");
        std::fs::write(&file, "something else").unwrap();
        let (code, _, errors) = onetake(&["migrate", "--write", &path, "--naming", naming], &[]);
        assert_eq!(code, 3);
        assert!(errors.contains("with other contents"), "{errors}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "something else");
    }
}

#[test]
fn migrate_says_what_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let embedded = format!("embedded:{}", folder.path().join("data").display());
    for url in ["memory:", "redis://127.0.0.1:1", &embedded] {
        let (code, said, errors) = onetake(&["migrate", "--store", url], &[]);
        assert_eq!(code, 0, "{errors}");
        assert!(said.starts_with(url) && said.contains("nothing to do"), "{said}");
    }
    let url = "postgres://me:hunter2@127.0.0.1:1/x";
    let (code, said, errors) = onetake(&["migrate", "--store", url], &[]);
    assert_eq!(code, 3, "{said}{errors}");
    assert!(
        errors.contains("cannot migrate the store postgres://me:***@127.0.0.1:1/x"),
        "{errors}"
    );
    let (code, _, errors) = onetake(&["migrate", "--store", "postgrs://me:hunter2@db/x"], &[]);
    assert_eq!(code, 2);
    assert!(
        errors.contains("did you mean `postgres:`?") && !errors.contains("hunter2"),
        "{errors}"
    );
}

#[test]
fn payments_on_redis_alone_are_refused_by_serve_and_check() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onetake.toml");
    let path = file.to_str().unwrap();
    let text = "[gateway]\nupstream = \"http://127.0.0.1:9\"\n[store]\nurl = \"redis://cache\"\n\
                [[route]]\nmatch = \"POST /charges\"\npreset = \"payment\"\ntenant = \"public\"\n";
    std::fs::write(&file, text).unwrap();
    for command in ["serve", "check"] {
        let (code, _, errors) = onetake(&[command, "--config", path], &[]);
        assert_eq!(code, 2, "{errors}");
        for part in ["a second charge", "filter = \"redis://HOST\"", "allow_lossy = true"] {
            assert!(errors.contains(part), "{part}: {errors}");
        }
    }
    let (code, said, _) =
        onetake(&["check", "--config", path], &[("ONETAKE__STORE__ALLOW_LOSSY", "true")]);
    assert!(code == 0 && said.contains("warning: route[0]"), "{said}");
    let open = text.replace("redis://cache", "memory:") + "on_store_down = \"fail-open\"\n";
    std::fs::write(&file, open).unwrap();
    let (code, said, _) = onetake(&["check", "--config", path], &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("every retry runs again") && said.contains("fine, 1 route\n"), "{said}");
}

#[test]
fn schema_prints_a_json_schema_and_nothing_else() {
    let (code, said, errors) = onetake(&["schema"], &[]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let schema: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(schema, onetake_cli::config::schema());
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
}

#[test]
fn check_explains_where_values_come_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onetake.toml");
    let text = "[gateway]\nupstream = \"${API}\"\n[defaults]\nttl = \"12h\"\n\
                [[route]]\nmatch = \"POST /jobs\"\npreset = \"job\"\n";
    std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    let variables = [("API", "http://127.0.0.1:3000")];
    let (code, said, errors) = onetake(&["check", "--config", path, "--explain"], &variables);
    assert_eq!(code, 0, "{errors}");
    assert!(said.contains("hides ttl = \"12h\" of [defaults]"), "{said}");
    let line = said.lines().find(|line| line.trim_start().starts_with("ttl = \"30d\""));
    assert!(line.is_some_and(|line| line.ends_with("# preset job")), "{said}");
    let (code, said, _) = onetake(&["check", "--config", path], &variables);
    assert!(code == 0 && !said.contains("# preset job"), "{said}");
    let (code, _, errors) = onetake(&["check", "--config", path, "--explain"], &[]);
    assert!(code == 2 && errors.contains("the environment variable `API` is not set"), "{errors}");
}

/// A file that is only for Envoy names no upstream, because Envoy forwards.
#[test]
fn check_explains_a_file_that_is_only_for_envoy() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onetake.toml");
    let path = file.to_str().unwrap();
    let explain = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let (code, said, errors) = onetake(&["check", "--config", path, "--explain"], &[]);
        assert_eq!(code, 0, "{errors}");
        said
    };
    let text = "[ext_proc]\n[[route]]\nmatch = \"POST /jobs\"\npreset = \"job\"\n";
    let said = explain(text);
    let line = |start: &str| {
        let mut lines = said.lines().map(str::trim);
        lines.find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {said}"))
    };
    assert!(said.contains("route[0]: POST /jobs\n"), "{said}");
    assert!(line("ttl = \"30d\"").ends_with("# preset job"), "{said}");
    assert!(line("upstream: Envoy forwards the request").ends_with("# built-in"), "{said}");
    assert!(!said.contains("http://envoy"), "{said}");
    // A route is explained once, also if the file is for a gateway too.
    let both = format!("[gateway]\nupstream = \"http://127.0.0.1:9\"\n{text}");
    assert_eq!(explain(&both).matches("route[0]: POST /jobs\n").count(), 1);
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, said, errors) = onetake(&["completions", shell], &[]);
        assert_eq!((code, errors.as_str()), (0, ""));
        assert!(said.contains("onetake") && said.contains("explain"), "{shell}");
    }
}

/// A file for a relay alone needs no upstream, and its rules are checked too.
#[test]
fn a_relay_is_checked_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onetake.toml");
    let path = file.to_str().unwrap();
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let (code, said, errors) = onetake(&["check", "--config", path], &[]);
        (code, said + &errors)
    };
    let relay = "[store]\nurl = \"sqlite:a\"\n[relay]\nsink = \"nats://me:secret@b:4222\"\n";
    let (code, said) = check(relay);
    assert!(
        code == 0 && said.contains("fine, a relay to nats://") && !said.contains("secret"),
        "{said}"
    );
    let both = "[gateway]\nupstream = \"http://a\"\nupstream_tls = { roots = \"/nowhere\" }\n\
                [relay]\nsink = \"https://b/hook\"\nsecrets = [\"whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\"]\n";
    let (code, said) = check(both);
    assert!(code == 2 && said.contains("/nowhere") && !said.contains("has no effect"), "{said}");
    let (code, said) = check(&both.replace("upstream_tls = { roots = \"/nowhere\" }", ""));
    assert!(code == 0 && said.contains("fine, 0 routes and a relay to b"), "{said}");
    // Certificate files are read; and a file for a relay alone may have TLS settings for its
    // webhook.
    let authority = rcgen::generate_simple_self_signed(vec!["b".to_owned()]).unwrap();
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, authority.cert.pem()).unwrap();
    let both = both.replace("/nowhere", roots.to_str().unwrap());
    let (code, said) = check(&both);
    assert!(code == 0 && said.contains("0 routes and a relay to b"), "{said}");
    let (code, said) = check(&both.replace("upstream = \"http://a\"\n", ""));
    assert!(code == 0 && said.contains("fine, a relay to b"), "{said}");
    for (wrong, field) in [("timeout = \"29s\"", "relay.timeout"), ("batch = 0", "relay.batch")] {
        let (code, said) = check(&format!("{relay}{wrong}\n"));
        assert!(code == 2 && said.contains(field), "{said}");
    }
    let (code, said) = check("[relay]\nbatch = 1\n");
    assert!(code == 2 && said.contains("relay.sink") && !said.contains("upstream"), "{said}");
}

#[test]
fn an_example_passes_check() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/gateway.toml");
    let (code, said, errors) = onetake(&["check", "--config", file], &[]);
    assert!(code == 0 && said.contains("fine, 3 routes"), "{said}{errors}");
}
