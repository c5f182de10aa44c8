//! The types of gRPC messages, for keys and fingerprints: `descriptor_set`.

use std::path::Path;

use onetake_http::grpc::{DescriptorSet, MessageField, Schema};
use onetake_http::{FingerprintMode, KeySource, Policy};

use super::check::Checks;
use super::error::ValueError;
use super::policy::{PolicyOptions, RouteOptions};

/// The largest file of descriptors, in bytes.
const DESCRIPTOR_SET_BYTES_MAX: u64 = 64 << 20;

/// An option that needs a schema, and the fields that it names.
struct Needs<'a> {
    option: &'static str,
    schema: &'a mut Schema,
    fields: Vec<&'a str>,
}

/// The parts of a policy that need a schema.
fn needs(policy: &mut Policy) -> Vec<Needs<'_>> {
    let mut found = Vec::new();
    if let KeySource::Grpc(MessageField::Named { schema, field }) = &mut policy.key.source {
        found.push(Needs { option: "key", schema, fields: vec![field] });
    }
    if let FingerprintMode::Protobuf(protobuf) = &mut policy.fingerprint.mode {
        let fields = protobuf.exclude.iter().map(String::as_str).collect();
        found.push(Needs { option: "fingerprint", schema: &mut protobuf.schema, fields });
    }
    found
}

impl Checks<'_> {
    /// Reads the descriptor set of a policy, if the policy needs one.
    pub(super) fn read_messages(
        &self,
        path: &str,
        own: &PolicyOptions,
        route: Option<&RouteOptions>,
        policy: &mut Policy,
    ) {
        let needed = needs(policy);
        let Some(Needs { option, .. }) = needed.first() else { return };
        let set = own.descriptor_set.as_ref().or(self.file.defaults.descriptor_set.as_ref());
        let Some(file) = set else {
            let what = "`descriptor_set` is missing: the fields of a message have names only by it";
            let fix = "write descriptor_set = \"billing.pb\" beside it, a file that protoc --include_imports --descriptor_set_out=billing.pb writes";
            return self.refuse(&format!("{path}.{option}"), ValueError::new(what, fix));
        };
        let schema = match read(file) {
            Ok(schema) => schema,
            Err(what) => {
                let fix = "write the name of a file that protoc --include_imports --descriptor_set_out=FILE wrote";
                let field = self.written(path, "descriptor_set");
                return self.refuse(&field, ValueError::new(what, fix));
            }
        };
        let method = route.and_then(|route| route.r#match.grpc_method());
        for Needs { option, schema: place, fields } in needed {
            *place = schema.clone();
            let Some(method) = &method else { continue };
            let mut names = fields.into_iter().map(Some).chain([None]);
            let fault = names.find_map(|name| schema.check(method, name, option == "key").err());
            if let Some(error) = fault {
                let fix = "write names as the .proto file has them, and write the descriptor set again if that file has changed";
                let fault = ValueError::new(error.to_string(), fix);
                self.refuse(&format!("{path}.{option}"), fault);
            }
        }
    }
}

fn read(file: &Path) -> Result<Schema, String> {
    let unreadable = |error| format!("cannot be read: {error}");
    let size = std::fs::metadata(file).map_err(unreadable)?.len();
    if size > DESCRIPTOR_SET_BYTES_MAX {
        return Err(format!("has {size} bytes, more than {DESCRIPTOR_SET_BYTES_MAX}"));
    }
    let bytes = std::fs::read(file).map_err(unreadable)?;
    DescriptorSet::decode(&bytes).map(Schema::new).map_err(|error| error.to_string())
}
