//! `dynamodb://REGION/TABLE?endpoint=…`

use onetake_core::{StoreError, StoreErrorKind};

/// Where a table is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) region: String,
    pub(super) table: String,
    /// Another server than AWS's own.
    pub(super) endpoint: Option<String>,
}

impl Place {
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let rest = url.strip_prefix("dynamodb://").ok_or_else(|| wrong("it has another scheme"))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (region, table) = path.split_once('/').ok_or_else(|| wrong("it names no table"))?;
        if region.is_empty() || !region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(wrong("its region is not one, such as eu-central-1"));
        }
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if !(3..=255).contains(&table.len()) || !table.chars().all(named) {
            return Err(wrong(
                "its table is not one: 3 to 255 letters, digits, underscores, dashes and dots",
            ));
        }
        let mut endpoint = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("endpoint", at))
                    if at.starts_with("http://") || at.starts_with("https://") =>
                {
                    endpoint = Some(at.to_owned());
                }
                Some(("endpoint", _)) => {
                    return Err(wrong("its endpoint does not begin with http:// or https://"));
                }
                _ => return Err(wrong("`endpoint` is all that may stand behind the ?")),
            }
        }
        Ok(Self { region: region.to_owned(), table: table.to_owned(), endpoint })
    }
}

/// An error that does not repeat the URL: somebody may have put a secret into it.
fn wrong(why: &str) -> StoreError {
    let what =
        format!("the store's URL is wrong: {why}; dynamodb://REGION/TABLE?endpoint=http://…");
    StoreError::new(StoreErrorKind::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_region_table_and_endpoint() {
        let place = Place::parse("dynamodb://eu-central-1/one.take_2").unwrap();
        assert_eq!((&*place.region, &*place.table), ("eu-central-1", "one.take_2"));
        assert_eq!(place.endpoint, None);
        let place = Place::parse("dynamodb://x/abc?endpoint=http://127.0.0.1:8000").unwrap();
        assert_eq!(place.endpoint.as_deref(), Some("http://127.0.0.1:8000"));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said() {
        for (url, why) in [
            ("dynamo://eu/abc", "another scheme"),
            ("dynamodb://eu-central-1", "no table"),
            ("dynamodb:///abc", "region"),
            ("dynamodb://eu central/abc", "region"),
            ("dynamodb://eu-central-1/ab", "3 to 255"),
            ("dynamodb://eu-central-1/a/b", "3 to 255"),
            ("dynamodb://eu-central-1/abc?endpoint=127.0.0.1:8000", "http://"),
            ("dynamodb://eu-central-1/abc?secret=s3cret", "all that may stand"),
        ] {
            let error = Place::parse(url).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Invalid);
            assert!(error.to_string().contains(why), "{url}: {error}");
            assert!(!error.to_string().contains("s3cret"));
        }
    }
}
