//! The types of gRPC messages, for keys and fingerprints: `descriptor_set`.

use std::path::PathBuf;

use onetake_http::grpc::{
    DescriptorSet, MessageError, MessageField, MessageSchema, ProtobufFingerprint, Schema,
};
use onetake_http::routes::RoutePattern;
use onetake_http::{FingerprintMode, KeySource};

use super::check::Checks;
use super::error::ValueError;
use super::policy::Settings;

/// The largest file of descriptors, in bytes.
const DESCRIPTOR_SET_BYTES_MAX: u64 = 64 << 20;

/// The schema of a policy until its file is read.
#[derive(Debug)]
pub(super) struct NoSchema;

impl MessageSchema for NoSchema {
    fn field(&self, _: &str, _: &str, _: &[u8]) -> Result<Option<String>, MessageError> {
        Err(MessageError::UnknownMethod)
    }

    fn canonical(&self, _: &str, _: &[String], _: &[u8]) -> Result<Vec<u8>, MessageError> {
        Err(MessageError::UnknownMethod)
    }

    fn check(&self, _: &str, _: Option<&str>, _: bool) -> Result<(), MessageError> {
        Err(MessageError::UnknownMethod)
    }

    fn digest(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// The option that needs a schema, and the fields that it names.
struct Needs<'a> {
    option: &'static str,
    schema: &'a mut Schema,
    fields: Vec<String>,
    is_key: bool,
}

/// The parts of a policy that need a schema.
fn needs(settings: &mut Settings) -> Vec<Needs<'_>> {
    let mut found = Vec::new();
    let policy = &mut settings.policy;
    if let KeySource::Grpc(MessageField::Named { schema, field }) = &mut policy.key.source {
        found.push(Needs { option: "key", fields: vec![field.clone()], schema, is_key: true });
    }
    if let FingerprintMode::Protobuf(ProtobufFingerprint { schema, exclude }) =
        &mut policy.fingerprint.mode
    {
        let fields = exclude.clone();
        found.push(Needs { option: "fingerprint", schema, fields, is_key: false });
    }
    found
}

impl Checks<'_, '_> {
    /// Reads the descriptor set of a policy, if the policy needs one. `set` is the file, and the
    /// section that names it.
    pub(super) fn read_messages(
        &mut self,
        path: &str,
        set: Option<(&PathBuf, &str)>,
        pattern: Option<&RoutePattern>,
        settings: &mut Settings,
    ) {
        let needed = needs(settings);
        let Some(first) = needed.first().map(|it| it.option) else { return };
        let Some((file, section)) = set else {
            let what = "`descriptor_set` is missing: the fields of a message have names only by it";
            let fix = "write descriptor_set = \"billing.pb\" beside it, a file that protoc --include_imports --descriptor_set_out=billing.pb writes";
            let field = format!("{path}.{first}");
            return self.refuse(&field, &field, ValueError::new(what, fix));
        };
        let schema = match read(file) {
            Ok(schema) => schema,
            Err(what) => {
                let fix = "write the name of a file that protoc --include_imports --descriptor_set_out=FILE wrote";
                let field = format!("{section}.descriptor_set");
                return self.refuse(&field, &field, ValueError::new(what, fix));
            }
        };
        let method = pattern.and_then(RoutePattern::grpc_method);
        let mut faults = Vec::new();
        for Needs { option, schema: place, fields, is_key } in needed {
            *place = schema.clone();
            let Some(method) = &method else { continue };
            let names = fields.iter().map(|field| Some(field.as_str())).chain([None]);
            for name in names {
                if let Err(error) = schema.check(method, name, is_key) {
                    faults.push((option, error));
                    break;
                }
            }
        }
        for (option, error) in faults {
            let fix = "write names as the .proto file has them, and write the descriptor set again if that file has changed";
            let field = format!("{path}.{option}");
            self.refuse(&field, &field, ValueError::new(error.to_string(), fix));
        }
    }
}

fn read(file: &PathBuf) -> Result<Schema, String> {
    let size = std::fs::metadata(file).map_err(|error| format!("cannot be read: {error}"))?.len();
    if size > DESCRIPTOR_SET_BYTES_MAX {
        return Err(format!("has {size} bytes, more than {DESCRIPTOR_SET_BYTES_MAX}"));
    }
    let bytes = std::fs::read(file).map_err(|error| format!("cannot be read: {error}"))?;
    DescriptorSet::decode(&bytes).map(Schema::new).map_err(|error| error.to_string())
}
