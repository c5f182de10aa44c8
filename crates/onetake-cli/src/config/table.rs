//! Tables of options. An option is declared once, by its name, its documentation, its form and its
//! default; the declaration gives the field, the reader, the JSON Schema and the reference in
//! docs/CONFIGURATION.md.

pub(super) use onetake_http::text::nearest;
use serde_json::{Value as Json, json};

use onetake_http::Policy;

use super::error::ValueError;
use super::form::{Form, Shape};
use super::reader::{Value, join, read_built_in};
use super::sections::File;
use super::tree;
use super::units;

/// A table of options.
pub(super) trait Table: Sized {
    fn info() -> TableInfo;

    /// Reads every option, so that every error is reported; `None` if there was one.
    fn read_fields(table: &Value<'_>) -> Option<Self>;
}

/// The description of a table.
pub(super) struct TableInfo {
    /// The name of such a table in messages.
    pub(super) label: &'static str,
    /// Such a table as TOML.
    pub(super) example: &'static str,
    pub(super) options: Vec<OptionInfo>,
    /// Options that routes and `[defaults]` share.
    pub(super) shared: Vec<OptionInfo>,
    /// Further keywords of the schema: rules between options.
    pub(super) extra: Json,
}

/// The description of an option.
pub(super) struct OptionInfo {
    pub(super) name: &'static str,
    pub(super) about: String,
    pub(super) shape: Shape,
    /// The default as TOML.
    pub(super) default: Option<String>,
    pub(super) is_required: bool,
    /// A former name, which is refused with a message that has the new one.
    pub(super) former: Option<&'static str>,
}

impl TableInfo {
    pub(super) fn all(&self) -> impl Iterator<Item = &OptionInfo> {
        self.options.iter().chain(&self.shared)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.all().map(|option| option.name)
    }
}

/// An option of a table: a form, and the value if the option is not written.
pub(super) struct Slot<T> {
    info: OptionInfo,
    read: Box<ReadSlot<T>>,
    apply: Box<Apply<T>>,
}

type ReadSlot<T> = dyn Fn(Option<&Value<'_>>) -> Option<T>;
type Apply<T> = dyn Fn(&mut Policy, T);

impl<T: 'static> Form<T> {
    /// An option that need not be written.
    pub(super) fn optional(self) -> Slot<Option<T>> {
        let read = self.read;
        Slot::new(self.shape, move |value| value.map_or(Some(None), |value| read(value).map(Some)))
    }

    /// An option that must be written.
    pub(super) fn required(self) -> Slot<T> {
        let read = self.read;
        Slot::new(self.shape, move |value| read(value?)).required()
    }

    /// An option with a default, which is read like a value in the file.
    pub(super) fn or(self, default: &'static str) -> Slot<T> {
        let read = self.read;
        let read = move |value: Option<&Value<'_>>| match value {
            Some(value) => read(value),
            None => read_built_in(&tree::parse_built_in(default)?, &read),
        };
        Slot::new(self.shape, read).else_says(default)
    }

    /// An option that sets a field of a policy. Its default is that of the field.
    pub(super) fn at(self, place: fn(&mut Policy) -> &mut T) -> Slot<Option<T>> {
        let default = (self.show)(place(&mut Policy::default()));
        let slot = self.optional().applied(move |policy, value| {
            if let Some(value) = value {
                *place(policy) = value;
            }
        });
        if default.is_empty() { slot } else { slot.else_says(&default) }
    }

    /// A table that counts as empty if it is not written.
    pub(super) fn or_empty(self) -> Slot<T> {
        let mut slot = self.or("{}");
        slot.info.default = None;
        slot
    }

    /// A table that has its default if it is not written.
    pub(super) fn or_default(self) -> Slot<T>
    where
        T: Default,
    {
        let read = self.read;
        Slot::new(self.shape, move |value| value.map_or_else(|| Some(T::default()), &read))
    }
}

impl<T: 'static> Slot<T> {
    fn new(shape: Shape, read: impl Fn(Option<&Value<'_>>) -> Option<T> + 'static) -> Self {
        let (name, about, default) = ("", String::new(), None);
        let info = OptionInfo { name, about, shape, default, is_required: false, former: None };
        Self { info, read: Box::new(read), apply: Box::new(|_, _| ()) }
    }

    /// An option that must be written.
    pub(super) fn required(mut self) -> Self {
        (self.info.is_required, self.info.default) = (true, None);
        self
    }

    /// An option that had another name.
    pub(super) fn formerly(mut self, former: &'static str) -> Self {
        self.info.former = Some(former);
        self
    }

    /// The text of a default that is set by other code.
    pub(super) fn else_says(mut self, default: &str) -> Self {
        self.info.default = Some(default.to_owned());
        self
    }

    /// Sets how the value changes a policy.
    pub(super) fn applied(self, apply: impl Fn(&mut Policy, T) + 'static) -> Self {
        Self { apply: Box::new(apply), ..self }
    }

    pub(super) fn apply(&self, policy: &mut Policy, value: T) {
        (self.apply)(policy, value);
    }

    pub(super) fn read(&self, table: &Value<'_>, field: &'static str) -> Option<T> {
        (self.read)(table.field(plain(field)).as_ref())
    }

    pub(super) fn info(self, field: &'static str, about: &str) -> OptionInfo {
        OptionInfo { name: plain(field), about: about.trim().to_owned(), ..self.info }
    }
}

/// A field's name without `r#`.
fn plain(field: &'static str) -> &'static str {
    field.strip_prefix("r#").unwrap_or(field)
}

/// Values that can be merged, where the stronger layer wins.
pub(super) trait Layered: Sized {
    fn over(self, weaker: Self) -> Self;
}

impl<T> Layered for Option<T> {
    fn over(self, weaker: Self) -> Self {
        self.or(weaker)
    }
}

/// Declares a table: `NAME [DERIVES] (LABEL, EXAMPLE) { OPTION: TYPE = SLOT, … }`.
///
/// `and { FIELD: TYPE, … }` behind it adds fields that are no options. Other code fills them in.
/// `with FIELD: TYPE` adds the options of another table.
///
/// `layered` before the name adds `over`, which merges the table with a weaker one, and `apply`,
/// which sets the fields of a policy.
macro_rules! table {
    (
        $(#[doc = $about:literal])+
        $vis:vis struct $Name:ident [$($derive:ident),*] ($label:literal, $example:literal $(, $extra:expr)?) {
            $( $(#[doc = $doc:literal])+ $field:ident: $T:ty = $slot:expr, )*
        }
        $( and { $( $(#[doc = $and_doc:literal])+ $and:ident: $And:ty, )+ } )?
        $( with $with:ident: $With:ty )?
    ) => {
        $(#[doc = $about])+
        #[derive($($derive),*)]
        $vis struct $Name {
            $( $(#[doc = $doc])+ pub $field: $T, )*
            $( $( $(#[doc = $and_doc])+ pub $and: $And, )+ )?
            $( pub $with: $With, )?
        }

        impl $crate::config::table::Table for $Name {
            fn info() -> $crate::config::table::TableInfo {
                use $crate::config::table::Slot;
                let options = vec![
                    $( Slot::<$T>::info($slot, stringify!($field), concat!($($doc),+)) ),*
                ];
                let _extra = serde_json::json!({});
                $( let _extra = $extra; )?
                let _shared = Vec::<$crate::config::table::OptionInfo>::new();
                $( let _shared = <$With as $crate::config::table::Table>::info().options; )?
                let (label, example, shared) = ($label, $example, _shared);
                $crate::config::table::TableInfo { label, example, options, shared, extra: _extra }
            }

            fn read_fields(table: &$crate::config::reader::Value<'_>) -> Option<Self> {
                use $crate::config::table::Slot;
                $( let $field = Slot::<$T>::read(&$slot, table, stringify!($field)); )*
                $( let $with = <$With as $crate::config::table::Table>::read_fields(table); )?
                Some(Self {
                    $( $field: $field?, )*
                    $( $( $and: Default::default(), )+ )?
                    $( $with: $with?, )?
                })
            }
        }
    };
    (
        layered $(#[doc = $about:literal])+
        $vis:vis struct $Name:ident [$($derive:ident),*] ($($head:tt)*) {
            $( $(#[doc = $doc:literal])+ $field:ident: $T:ty = $slot:expr, )*
        }
    ) => {
        table! {
            $(#[doc = $about])+
            $vis struct $Name [$($derive),*] ($($head)*) {
                $( $(#[doc = $doc])+ $field: $T = $slot, )*
            }
        }

        impl $crate::config::table::Layered for $Name {
            fn over(self, weaker: Self) -> Self {
                Self { $( $field: self.$field.over(weaker.$field) ),* }
            }
        }

        impl $Name {
            /// Sets the options that are written, in a policy.
            fn apply(self, policy: &mut onetake_http::Policy) {
                $( $crate::config::table::Slot::<$T>::apply(&$slot, policy, self.$field); )*
            }
        }
    };
}
pub(super) use table;

/// The JSON Schema of a table. The title of each option is its path in messages.
pub(super) fn schema(info: &TableInfo, path: &str) -> Json {
    let own = info.options.iter().map(|option| (option.name, option.schema(path)));
    let link = |name| (name, json!({ "$ref": format!("#/$defs/{name}") }));
    let shared = info.shared.iter().map(|option| link(option.name));
    let properties = own.chain(shared).collect::<Json>();
    let required = info.all().filter(|option| option.is_required).map(|option| option.name);
    let required = required.collect::<Vec<_>>();
    let mut table =
        json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if !required.is_empty() {
        extend(&mut table, json!({ "required": required }));
    }
    extend(&mut table, info.extra.clone());
    table
}

impl OptionInfo {
    pub(super) fn schema(&self, path: &str) -> Json {
        let title = join(path, self.name);
        let mut schema = self.shape.schema(&title);
        let about = match &self.shape {
            Shape::Duration(min, max) => format!("{} From {min} to {max}.", self.about),
            _ => self.about.clone(),
        };
        extend(&mut schema, json!({ "title": title, "description": about }));
        // A default may also be a sentence for the documentation.
        let default = self.default.iter().map(|default| format!("default = {default}"));
        default.flat_map(|text| toml::from_str(&text)).for_each(|it| extend(&mut schema, it));
        schema
    }
}

/// Pattern of strings with a variable. They are checked when the variable is known.
const VARIABLE: &str = r"\$\{";

impl Shape {
    fn schema(&self, path: &str) -> Json {
        let text = |pattern: &str| json!({ "type": "string", "pattern": format!("^({pattern})$|{VARIABLE}") });
        match self {
            Self::Boolean => json!({ "type": "boolean" }),
            Self::Integer(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Self::Duration(..) => text(r"\s*([0-9]+(ms|s|m|h|d))+\s*"),
            Self::Size(min, max) => {
                let bound = |text| units::parse_bytes(text).unwrap_or_default();
                let (min, max) = (bound(min), bound(max));
                let bytes = json!({ "type": "integer", "minimum": min, "maximum": max });
                json!({ "oneOf": [bytes, text(r"\s*[0-9]+\s*(GiB|MiB|KiB|B)?\s*")] })
            }
            Self::Text(pattern) => text(pattern),
            Self::File => {
                json!({ "type": "string", "minLength": 1, "not": { "pattern": "-----BEGIN" } })
            }
            Self::Words(words) => json!({ "anyOf": [
                { "enum": words }, { "type": "string", "pattern": VARIABLE },
            ] }),
            Self::List(of, min, max) => {
                let mut list = json!({ "type": "array", "items": of.schema(&format!("{path}[]")) });
                if *min > 0 {
                    extend(&mut list, json!({ "minItems": min }));
                }
                if *max < usize::MAX {
                    extend(&mut list, json!({ "maxItems": max }));
                }
                list
            }
            // Any name is allowed, so it is not a table with known fields.
            Self::Headers(of, max) => json!({
                "type": ["object"],
                "propertyNames": { "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$" },
                "additionalProperties": of.schema(&format!("{path}.*")),
                "maxProperties": max,
            }),
            Self::Table(info) => schema(&info(), path),
            Self::OneOf(shapes) => {
                json!({ "oneOf": shapes.iter().map(|shape| shape.schema(path)).collect::<Vec<_>>() })
            }
            Self::Secret(of) => of.schema(path),
        }
    }
}

pub(super) fn extend(schema: &mut Json, keywords: Json) {
    if let (Json::Object(schema), Json::Object(keywords)) = (schema, keywords) {
        schema.extend(keywords);
    }
}

/// The error for an option that a table does not have.
///
/// `rename` turns the nearest valid name into the text that the user has to write.
pub(super) fn unknown(info: &TableInfo, name: &str, rename: impl Fn(&str) -> String) -> ValueError {
    if let Some(renamed) = info.all().find(|option| option.former == Some(name)) {
        let what = format!("the field was renamed to `{}`", renamed.name);
        return ValueError::new(what, format!("write `{}`", rename(renamed.name)));
    }
    let here = || info.names().collect::<Vec<_>>().join(", ");
    let mut owners = Vec::new();
    find_owners(&Shape::Table(File::info), name, &mut owners);
    let fix = match (nearest(name, info.names()), owners.join(" or ")) {
        (Some(near), _) => format!("did you mean `{}`?", rename(near)),
        (None, owners) if owners.is_empty() => format!("fields of {}: {}", info.label, here()),
        (None, owners) => {
            format!("`{name}` is a field of {owners}; fields of {}: {}", info.label, here())
        }
    };
    ValueError::new("unknown field", fix)
}

/// Finds the labels of all tables with an option of this name.
fn find_owners(shape: &Shape, name: &str, owners: &mut Vec<&'static str>) {
    match shape {
        Shape::Table(info) => {
            let info = info();
            if info.names().any(|known| known == name) && !owners.contains(&info.label) {
                owners.push(info.label);
            }
            info.all().for_each(|option| find_owners(&option.shape, name, owners));
        }
        Shape::List(of, ..) => find_owners(of, name, owners),
        Shape::OneOf(shapes) => shapes.iter().for_each(|shape| find_owners(shape, name, owners)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::RouteOptions;
    use super::super::sections::File;
    use super::*;

    #[test]
    fn the_nearest_name_is_near() {
        let route = RouteOptions::info();
        let near = |word| nearest(word, route.names());
        assert_eq!(near("tll"), Some("ttl"));
        assert_eq!(near("wait-timeout"), Some("wait_timeout"));
        assert_eq!(near("TTL"), Some("ttl"));
        assert_eq!(near("fingerpint"), Some("fingerprint"));
        assert_eq!(near("max_responce_body"), Some("max_response_body"));
        assert_eq!(near("colour"), None);
        assert_eq!(near("x"), None);
        assert_eq!(near(""), None);
        assert_eq!(near(&"t".repeat(10_000)), None);
        assert_eq!(nearest("mod", ["mode", "exclude", "include", "headers"]), Some("mode"));
        assert_eq!(nearest("routes", File::info().names()), Some("route"));
    }
}
