//! nginx, as a proxy for each protocol, and as a server that answers by itself.

use std::io;

use super::{Stage, Target, find, free_address, shown};
use crate::case::Wire;
use crate::load::Answers;

/// The response of nginx itself: as long as that of the upstream.
const RESPONSE: &str = "{\"id\":\"ch_0000000000000000\",\"amount\":100,\"currency\":\"eur\"}";

impl Stage {
    /// Starts nginx as a plain proxy with keep-alive.
    pub(super) fn nginx(&self, wire: Wire) -> io::Result<Option<Target>> {
        let options = match wire {
            Wire::Http1 => "",
            Wire::Tls => " ssl",
            Wire::Http2 | Wire::Grpc => " http2",
            Wire::TlsHttp2 => " ssl http2",
        };
        let location = if wire == Wire::Grpc {
            "grpc_pass grpc://api;"
        } else {
            "proxy_pass http://api; proxy_http_version 1.1; proxy_set_header Connection \"\";"
        };
        self.start_nginx(options, wire, location, Answers::Forwards)
    }

    /// Starts nginx without an upstream.
    pub(super) fn nginx_direct(&self) -> io::Result<Option<Target>> {
        let location = format!("default_type application/json; return 201 '{RESPONSE}';");
        self.start_nginx("", Wire::Http1, &location, Answers::Alone)
    }

    fn start_nginx(
        &self,
        options: &str,
        wire: Wire,
        location: &str,
        answers: Answers,
    ) -> io::Result<Option<Target>> {
        let Some(binary) = find("nginx", &["/usr/sbin".into()]) else { return Ok(None) };
        let (folder, address) = (tempfile::tempdir()?, free_address());
        let (path, upstream) = (shown(folder.path()), self.upstream.address);
        let (certificate, key) = self.certificate.files();
        let tls = if wire.has_tls() {
            let (certificate, key) = (shown(&certificate), shown(&key));
            format!("ssl_certificate {certificate}; ssl_certificate_key {key};")
        } else {
            String::new()
        };
        // Bodies of a megabyte stay in memory, as they do in the gateway.
        let text = format!(
            "worker_processes auto;\ndaemon off;\npid {path}/pid;\nerror_log {path}/error.log;\n\
             worker_rlimit_nofile 20000;\n\
             events {{ worker_connections 16384; }}\n\
             http {{\n  access_log off;\n  client_body_temp_path {path}/body;\n  \
             proxy_temp_path {path}/proxy;\n  fastcgi_temp_path {path}/fastcgi;\n  \
             uwsgi_temp_path {path}/uwsgi;\n  scgi_temp_path {path}/scgi;\n  \
             keepalive_requests 1000000000;\n  keepalive_timeout 300s;\n  \
             client_max_body_size 8m;\n  client_body_buffer_size 2m;\n  \
             proxy_buffers 16 128k;\n  proxy_buffer_size 128k;\n  proxy_busy_buffers_size 256k;\n  \
             upstream api {{ server {upstream}; keepalive 512; keepalive_requests 1000000000; }}\n  \
             server {{\n    listen {address}{options};\n    {tls}\n    \
             location / {{ {location} }}\n  }}\n}}\n"
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, text)?;
        let command = [shown(&binary), "-c".to_owned(), shown(&file)];
        Target::start("nginx", address, answers, folder, &command).map(Some)
    }
}
