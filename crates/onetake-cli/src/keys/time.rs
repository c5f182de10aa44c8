//! Ages such as `15m` on the command line.

/// Parses an age such as `90s`, `15m`, `6h` or `2d` into seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || "write a number and s, m, h or d, such as 15m".to_owned();
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let number = text.strip_suffix(unit).and_then(|number| number.parse::<u64>().ok());
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    number.and_then(|number| number.checked_mul(factor)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    #[test]
    fn ages_are_read() {
        assert_eq!(super::seconds("90s"), Ok(90));
        assert_eq!(super::seconds("2d"), Ok(172_800));
        for wrong in ["", "s", "5", "-5s", "1.5h", "5w", "99999999999999999999d", "ä"] {
            assert!(super::seconds(wrong).is_err(), "{wrong}");
        }
    }
}
