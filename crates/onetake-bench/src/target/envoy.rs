//! Envoy as a plain proxy, and with `onetake ext-proc`.

use std::io;
use std::net::SocketAddr;

use onetake_sim::servers::tools;

use super::{Stage, Target, find, free_address, shown};
use crate::load::Answers;

/// The configuration that the documentation describes.
const EXAMPLE: &str = include_str!("../../../../examples/envoy-ext-proc.yaml");
/// The line before the filter's section, and the one behind it.
const FILTER: [&str; 2] = [
    "          - name: envoy.filters.http.ext_proc\n",
    "          - name: envoy.filters.http.router\n",
];

impl Stage {
    /// Starts Envoy with the example's file, without the filter.
    pub(super) fn envoy(&self) -> io::Result<Option<Target>> {
        let text = without_filter(EXAMPLE)?;
        self.start_envoy(&text, Answers::Forwards, free_address())
    }

    /// Starts Envoy with the example's file, and the processor.
    pub(super) fn ext_proc(&self) -> io::Result<Option<Target>> {
        if find("envoy", &[tools().join("envoy")]).is_none() {
            return Ok(None);
        }
        let (folder, listen, admin) = (tempfile::tempdir()?, free_address(), free_address());
        let file = folder.path().join("ext-proc.toml");
        let store = shown(&folder.path().join("store"));
        std::fs::write(
            &file,
            format!(
                "[ext_proc]\nlisten = \"{listen}\"\n[admin]\nlisten = \"{admin}\"\n\
                 [store]\nurl = \"embedded:{store}\"\n"
            ),
        )?;
        let command = [
            "env".to_owned(),
            "ONETAKE_LOG=warn".to_owned(),
            shown(&self.binary),
            "ext-proc".to_owned(),
            "--config".to_owned(),
            shown(&file),
        ];
        let processor = Target::start("ext-proc", listen, Answers::Records, folder, &command)?;
        let Some(mut envoy) = self.start_envoy(EXAMPLE, Answers::Records, listen)? else {
            return Ok(None);
        };
        envoy.processes.extend(&processor.processes);
        envoy.held.push(Box::new(processor));
        Ok(Some(envoy))
    }

    fn start_envoy(
        &self,
        text: &str,
        answers: Answers,
        processor: SocketAddr,
    ) -> io::Result<Option<Target>> {
        let Some(binary) = find("envoy", &[tools().join("envoy")]) else { return Ok(None) };
        let (folder, address) = (tempfile::tempdir()?, free_address());
        let port = |port: u16| format!("port_value: {port}");
        let text = text.replace(&port(10000), &port(address.port()));
        let text = text.replace(&port(3000), &port(self.upstream.address.port()));
        let text = text.replace(&port(9002), &port(processor.port()));
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, text)?;
        let arguments = ["--disable-hot-restart", "--concurrency", "2", "-l", "warn"];
        let mut command = vec![shown(&binary), "-c".to_owned(), shown(&file)];
        command.extend(arguments.map(str::to_owned));
        Target::start("envoy", address, answers, folder, &command).map(Some)
    }
}

fn without_filter(text: &str) -> io::Result<String> {
    let [filter, router] = FILTER;
    let parts = text.split_once(filter).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(router)?;
        Some(format!("{before}{router}{after}"))
    });
    parts.ok_or_else(|| io::Error::other("examples/envoy-ext-proc.yaml has no filter"))
}
