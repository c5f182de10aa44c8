//! Schemas from a descriptor set (`protoc --include_imports --descriptor_set_out`).

use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    ReflectMessage, Value,
};
use sha2::{Digest, Sha256};

use super::schema::{MessageError, MessageSchema};

/// The error of a descriptor set that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("not a descriptor set: {0}")]
pub struct DescriptorError(String);

/// A schema that was read from a file of descriptors. The default has no methods.
#[derive(Debug, Default)]
pub struct DescriptorSet {
    pool: DescriptorPool,
    digest: [u8; 32],
}

impl DescriptorSet {
    /// Reads the content of a file that `protoc --include_imports --descriptor_set_out` wrote.
    ///
    /// # Errors
    /// If the bytes are not a descriptor set, or if a file that it imports is missing.
    pub fn decode(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let pool =
            DescriptorPool::decode(bytes).map_err(|error| DescriptorError(error.to_string()))?;
        Ok(Self { pool, digest: Sha256::digest(bytes).into() })
    }

    /// Returns the type of the message that a method takes.
    fn input(&self, path: &str) -> Result<MessageDescriptor, MessageError> {
        let (service, method) =
            path.trim_matches('/').split_once('/').ok_or(MessageError::UnknownMethod)?;
        let service = self.pool.get_service_by_name(service).ok_or(MessageError::UnknownMethod)?;
        let found = service.methods().find(|known| known.name() == method);
        Ok(found.ok_or(MessageError::UnknownMethod)?.input())
    }

    fn message(&self, path: &str, bytes: &[u8]) -> Result<DynamicMessage, MessageError> {
        let input = self.input(path)?;
        DynamicMessage::decode(input, bytes).map_err(|_| MessageError::Malformed)
    }
}

/// Returns the descriptor of a field by its names.
fn find(message: &MessageDescriptor, path: &str) -> Result<FieldDescriptor, MessageError> {
    let unknown = || MessageError::UnknownField(path.to_owned());
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let field = message.get_field_by_name(name).ok_or_else(unknown)?;
    match (rest, field.kind()) {
        (None, _) => Ok(field),
        (Some(rest), Kind::Message(inner)) if !field.is_list() && !field.is_map() => {
            find(&inner, rest).map_err(|_| unknown())
        }
        (Some(_), _) => Err(unknown()),
    }
}

fn can_be_key(field: &FieldDescriptor) -> bool {
    let is_plain = matches!(
        field.kind(),
        Kind::String
            | Kind::Int32
            | Kind::Int64
            | Kind::Uint32
            | Kind::Uint64
            | Kind::Sint32
            | Kind::Sint64
            | Kind::Fixed32
            | Kind::Fixed64
            | Kind::Sfixed32
            | Kind::Sfixed64
    );
    is_plain && !field.is_list() && !field.is_map()
}

impl MessageSchema for DescriptorSet {
    fn field(
        &self,
        method: &str,
        field: &str,
        message: &[u8],
    ) -> Result<Option<String>, MessageError> {
        let unknown = || MessageError::UnknownField(field.to_owned());
        let mut at = self.message(method, message)?;
        let mut names = field.split('.').peekable();
        while let Some(name) = names.next() {
            let found = at.descriptor().get_field_by_name(name).ok_or_else(unknown)?;
            if !at.has_field(&found) {
                return Ok(None);
            }
            match (at.get_field(&found).into_owned(), names.peek()) {
                (Value::Message(inner), Some(_)) => at = inner,
                (Value::String(text), None) => return Ok(Some(text).filter(|it| !it.is_empty())),
                (Value::I32(number), None) => return Ok(Some(number.to_string())),
                (Value::I64(number), None) => return Ok(Some(number.to_string())),
                (Value::U32(number), None) => return Ok(Some(number.to_string())),
                (Value::U64(number), None) => return Ok(Some(number.to_string())),
                _ => return Err(MessageError::NotAKey(field.to_owned())),
            }
        }
        Err(unknown())
    }

    fn canonical(
        &self,
        method: &str,
        exclude: &[String],
        message: &[u8],
    ) -> Result<Vec<u8>, MessageError> {
        let mut out = Vec::with_capacity(message.len());
        let exclude: Vec<&str> = exclude.iter().map(String::as_str).collect();
        put_message(&mut out, &self.message(method, message)?, &exclude);
        Ok(out)
    }

    fn check(&self, path: &str, field: Option<&str>, is_key: bool) -> Result<(), MessageError> {
        let input = self.input(path)?;
        let Some(name) = field else { return Ok(()) };
        let field = find(&input, name)?;
        if is_key && !can_be_key(&field) {
            return Err(MessageError::NotAKey(name.to_owned()));
        }
        Ok(())
    }

    fn digest(&self) -> [u8; 32] {
        self.digest
    }
}

/// Writes the fields of a message in the order of their numbers. Every value has its length in
/// front of it, so that two messages cannot run into each other.
fn put_message(out: &mut Vec<u8>, message: &DynamicMessage, exclude: &[&str]) {
    let mut fields: Vec<_> = message.fields().collect();
    fields.sort_by_key(|(field, _)| field.number());
    for (field, value) in fields {
        let name = field.name();
        if exclude.contains(&name) {
            continue;
        }
        let inner: Vec<&str> =
            exclude.iter().filter_map(|path| path.strip_prefix(name)?.strip_prefix('.')).collect();
        out.extend_from_slice(&field.number().to_be_bytes());
        put_value(out, value, &inner);
    }
    out.extend_from_slice(&0_u32.to_be_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value, exclude: &[&str]) {
    match value {
        Value::Bool(it) => put(out, b'b', &[u8::from(*it)]),
        Value::I32(it) => put(out, b'i', &it.to_be_bytes()),
        Value::I64(it) => put(out, b'I', &it.to_be_bytes()),
        Value::U32(it) => put(out, b'u', &it.to_be_bytes()),
        Value::U64(it) => put(out, b'U', &it.to_be_bytes()),
        Value::F32(it) => put(out, b'f', &it.to_bits().to_be_bytes()),
        Value::F64(it) => put(out, b'F', &it.to_bits().to_be_bytes()),
        Value::String(it) => put(out, b's', it.as_bytes()),
        Value::Bytes(it) => put(out, b'x', it),
        Value::EnumNumber(it) => put(out, b'e', &it.to_be_bytes()),
        Value::Message(it) => {
            let mut inner = Vec::new();
            put_message(&mut inner, it, exclude);
            put(out, b'm', &inner);
        }
        Value::List(all) => {
            let mut inner = Vec::new();
            all.iter().for_each(|one| put_value(&mut inner, one, exclude));
            put(out, b'l', &inner);
        }
        Value::Map(all) => {
            let mut entries: Vec<Vec<u8>> = all
                .iter()
                .map(|(key, value)| {
                    let mut entry = Vec::new();
                    put_key(&mut entry, key);
                    put_value(&mut entry, value, exclude);
                    entry
                })
                .collect();
            entries.sort();
            put(out, b'M', &entries.concat());
        }
    }
}

fn put_key(out: &mut Vec<u8>, key: &MapKey) {
    put_value(out, &Value::from(key.clone()), &[]);
}

fn put(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    out.push(kind);
    out.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests;
