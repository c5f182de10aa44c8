//! The clients, and the commands of their languages.

use std::process::Command;

use super::{Binaries, Broken, Client, RUST_SUITE, clients, read};
use crate::install;

pub(super) fn typescript() -> Result<Client<'static>, String> {
    let folder = clients().join("typescript");
    let lock = folder.join("package-lock.json");
    install::once(&lock, &folder.join("node_modules/.installed-lock"), || {
        let mut npm = Command::new("npm");
        npm.args(["ci", "--silent", "--ignore-scripts"]).current_dir(&folder);
        npm
    })?;
    for built in ["build", "dist"] {
        let _absent = std::fs::remove_dir_all(folder.join(built));
    }
    let tsc = "node_modules/typescript/bin/tsc";
    let suite = vec!["node", "build/conformance/run.js"];
    Ok(Client {
        name: "typescript",
        broken: Broken::inside(&folder, vec!["build"], &suite),
        folder,
        variables: install::node_20()?.into_iter().map(|path| ("PATH", path)).collect(),
        checks: vec![
            vec![
                "node",
                "node_modules/prettier/bin/prettier.cjs",
                "--check",
                "--log-level",
                "warn",
                "--config",
                ".prettierrc.json",
                ".",
                "../../examples/shop/**/*.{mjs,js,css,html}",
            ],
            vec!["node", tsc, "-p", "tsconfig.build.json"],
            vec!["node", tsc, "-p", "tsconfig.json", "--outDir", "build"],
            vec!["node", "node_modules/eslint/bin/eslint.js", "."],
            vec!["node", "--test", "build/test/"],
        ],
        suite,
        effects: vec![
            vec!["node", "build/conformance/effects.js"],
            vec!["node", "build/conformance/effects-browser.js"],
        ],
    })
}

pub(super) fn python() -> Result<Client<'static>, String> {
    let folder = clients().join("python");
    let packages = install::tools().join("clients-python");
    let list = folder.join("requirements-dev.txt");
    install::once(&list, &packages.join(".installed-lock"), || {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]);
        pip.args(["--no-deps", "--target"]).arg(&packages).arg("--requirement").arg(&list);
        pip
    })?;
    let suite = vec!["python3", "conformance/run.py"];
    Ok(Client {
        name: "python",
        broken: Broken::inside(&folder, vec!["src", "conformance"], &suite),
        folder,
        variables: vec![
            ("ONETAKE_PACKAGES", packages),
            ("PYTHONDONTWRITEBYTECODE", "1".into()),
            ("MYPY_CACHE_DIR", clients().join("../target/tmp/mypy")),
            ("RUFF_NO_CACHE", "true".into()),
        ],
        checks: vec![
            vec!["python3", "-m", "ruff", "format", "--check", "--quiet", "."],
            vec!["python3", "-m", "ruff", "check", "--quiet", "."],
            vec!["python3", "-m", "mypy"],
            vec!["python3", "-m", "pytest"],
        ],
        suite,
        effects: vec![vec!["python3", "conformance/effects.py"]],
    })
}

pub(super) fn go() -> Client<'static> {
    let folder = clients().join("go");
    let suite = vec!["go", "run", "./internal/conformance"];
    Client {
        name: "go",
        // The whole folder.
        broken: Broken::inside(&folder, vec![""], &suite),
        folder,
        variables: vec![("GOFLAGS", "-mod=mod".into()), ("GOPROXY", "off".into())],
        checks: vec![
            vec!["sh", "-c", "test -z \"$(gofmt -l .)\""],
            vec!["go", "vet", "./..."],
            vec!["go", "test", "./..."],
        ],
        effects: vec![suite.clone()],
        suite,
    }
}

/// The client for Rust is a crate of the workspace: `cargo xtask test` and `cargo xtask lint` run
/// its tests, formatter and linter.
pub(super) fn rust(binaries: &Binaries) -> Result<Client<'_>, String> {
    let root = clients().join("..");
    let suite = vec![binaries.rust_suite.to_str().ok_or("the path of a program is no text")?];
    // The copy is a workspace with one crate. It shares the target folder, so that libraries are
    // built once; its program has another name, so that it never replaces the real one.
    let workspace = read(&root.join("Cargo.toml"))?
        .replace(r#"members = ["crates/*", "xtask"]"#, r#"members = ["crates/onetake-client"]"#)
        .replace(r#"default-members = ["crates/onetake-cli"]"#, "");
    let manifest = "crates/onetake-client/Cargo.toml";
    let program = format!(r#"name = "{RUST_SUITE}"#);
    let broken = Broken {
        folder: root.join("target/tmp/client-break"),
        copied: vec!["crates/onetake-client"],
        written: vec![
            ("Cargo.toml", workspace),
            ("Cargo.lock", read(&root.join("Cargo.lock"))?),
            (manifest, read(&root.join(manifest))?.replace(&program, &format!("{program}_broken"))),
        ],
        suite: vec![
            "cargo",
            "run",
            "--quiet",
            "--all-features",
            "--example",
            "client_suite_broken",
            "--",
        ],
    };
    Ok(Client {
        name: "rust",
        variables: vec![("CARGO_TARGET_DIR", root.join("target"))],
        folder: root,
        checks: vec![],
        effects: vec![suite.clone()],
        suite,
        broken,
    })
}
