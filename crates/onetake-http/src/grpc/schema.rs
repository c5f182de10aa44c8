//! Schemas of messages: what a field of a message is, and when two messages are the same.

use std::fmt;
use std::sync::Arc;

/// The error of a message that cannot be read by its schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The schema does not have the method of the call.
    #[error("the schema does not have the method of this call")]
    UnknownMethod,
    /// The message of the method does not have the field.
    #[error("the message of this call does not have the field {0}")]
    UnknownField(String),
    /// The bytes are not a message of the method's type.
    #[error("the message is not valid protobuf of the type that the method takes")]
    Malformed,
    /// The field is of a type that cannot be a key.
    #[error("the field {0} is neither a string nor an integer")]
    NotAKey(String),
}

/// The types of the messages of some methods. `DescriptorSet` is one (feature `protobuf`).
pub trait MessageSchema: fmt::Debug + Send + Sync + 'static {
    /// Returns the field of a call's message as text, or `None` if it is empty or absent. The
    /// method is the path of the call, such as `/billing.v1.Payments/Charge`. The field is a name,
    /// or several with dots between them.
    ///
    /// # Errors
    /// If the message or the field cannot be read.
    fn field(
        &self,
        method: &str,
        field: &str,
        message: &[u8],
    ) -> Result<Option<String>, MessageError>;

    /// Returns a text that is the same for messages that mean the same. The fields in `exclude` do
    /// not count.
    ///
    /// # Errors
    /// If the message cannot be read.
    fn canonical(
        &self,
        method: &str,
        exclude: &[String],
        message: &[u8],
    ) -> Result<Vec<u8>, MessageError>;

    /// Checks that a method, or every method of a service if the method is `None`, takes messages
    /// with the field.
    ///
    /// # Errors
    /// If it does not.
    fn check(&self, path: &str, field: Option<&str>, is_key: bool) -> Result<(), MessageError>;

    /// Returns a digest of the schema, by which two schemas are compared.
    fn digest(&self) -> [u8; 32];
}

/// A schema that routes share.
#[derive(Clone)]
pub struct Schema(Arc<dyn MessageSchema>);

impl Schema {
    /// Shares a schema.
    #[must_use]
    pub fn new(schema: impl MessageSchema) -> Self {
        Self(Arc::new(schema))
    }
}

impl std::ops::Deref for Schema {
    type Target = dyn MessageSchema;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for Schema {
    fn eq(&self, other: &Self) -> bool {
        self.digest() == other.digest()
    }
}

impl Eq for Schema {}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schema")
    }
}

/// The comparison of gRPC calls by the fields of their messages. The order of fields and of map
/// entries does not count, and unknown fields do not either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtobufFingerprint {
    /// The types of the messages.
    pub schema: Schema,
    /// Fields that do not count, such as `sent_at` or `meta.trace`.
    pub exclude: Vec<String>,
}
