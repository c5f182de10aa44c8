//! DynamoDB URLs: `dynamodb://REGION/TABLE?endpoint=…`

use onetake_core::StoreError;

use crate::url::ServerUrl;

/// The location of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableLocation {
    pub(super) region: String,
    pub(super) table: String,
    /// The endpoint of a server that is not AWS's.
    pub(super) endpoint: Option<String>,
}

impl TableLocation {
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let url = ServerUrl::dynamodb(url)?;
        Ok(Self {
            region: url.region().to_owned(),
            table: url.path().to_owned(),
            endpoint: url.endpoint().map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetake_core::StoreErrorKind;

    #[test]
    fn urls_name_region_table_and_endpoint() {
        let place = TableLocation::parse("dynamodb://eu-central-1/one.take_2").unwrap();
        assert_eq!((&*place.region, &*place.table), ("eu-central-1", "one.take_2"));
        assert_eq!(place.endpoint, None);
        let place =
            TableLocation::parse("dynamodb://x/abc?endpoint=http://127.0.0.1:8000").unwrap();
        assert_eq!(place.endpoint.as_deref(), Some("http://127.0.0.1:8000"));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said() {
        for (url, why) in [
            ("dynamo://eu/abc", "not a DynamoDB URL"),
            ("dynamodb://eu-central-1", "table is missing"),
            ("dynamodb:///abc", "region"),
            ("dynamodb://eu central/abc", "white space"),
            ("dynamodb://eu-central-1/ab", "3 to 255"),
            ("dynamodb://eu-central-1/a/b", "3 to 255"),
            ("dynamodb://eu-central-1/abc?endpoint=127.0.0.1:8000", "http://"),
            ("dynamodb://eu-central-1/abc?secret=s3cret", "not a valid endpoint"),
        ] {
            let error = TableLocation::parse(url).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Invalid);
            assert!(error.to_string().contains(why), "{url}: {error}");
            assert!(!error.to_string().contains("s3cret"));
        }
    }
}
