//! RFC 3339 in and out, and the times a query may name.

use std::time::SystemTime;

/// The wall clock, in epoch milliseconds.
pub fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// `2026-01-01T00:00:00.000Z`
pub fn rfc3339(epoch_ms: i64) -> String {
    let (days, ms) = (epoch_ms.div_euclid(86_400_000), epoch_ms.rem_euclid(86_400_000));
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        ms / 3_600_000,
        ms / 60_000 % 60,
        ms / 1_000 % 60,
        ms % 1_000
    )
}

/// A time as a query gives it: `-24h` before now, epoch milliseconds, or RFC 3339 in UTC. `None`: none of these.
pub fn parse(text: &str, now_ms: i64) -> Option<i64> {
    if let Some(ago) = text.strip_prefix('-') {
        let digits = ago.len() - ago.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: i64 = ago[..digits].parse().ok()?;
        let unit = match &ago[digits..] {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        return now_ms.checked_sub(number.checked_mul(unit)?);
    }
    if let Ok(ms) = text.parse() {
        return Some(ms);
    }
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let date: Vec<i64> = date.split('-').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [year, month, day] = date[..] else { return None };
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let clock: Vec<i64> = clock.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match clock[..] {
        [hours, minutes] => (hours, minutes, 0),
        [hours, minutes, seconds] => (hours, minutes, seconds),
        _ => return None,
    };
    if !(0..24).contains(&hours) || !(0..60).contains(&minutes) || !(0..61).contains(&seconds) {
        return None;
    }
    let ms: i64 = if fraction.is_empty() { 0 } else { format!("{fraction:0<3}").get(..3)?.parse().ok()? };
    Some((((days(year, month, day) * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + ms)
}

/// Days since 1970-01-01 of a date in the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so that the leap day is the last of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year, month and day of a number of days since 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_print_and_read_back() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(1_767_225_600_123), "2026-01-01T00:00:00.123Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        for ms in [0, 951_782_400_000, 1_767_225_600_123, 4_107_542_399_999] {
            assert_eq!(parse(&rfc3339(ms), 0), Some(ms));
        }
    }

    #[test]
    fn a_query_may_look_back_from_now() {
        assert_eq!(parse("-24h", 100_000_000), Some(13_600_000));
        assert_eq!(parse("-90s", 100_000), Some(10_000));
        assert_eq!(parse("1767225600000", 0), Some(1_767_225_600_000));
        assert_eq!(parse("2026-01-01T00:00Z", 0), Some(1_767_225_600_000));
        assert_eq!(parse("yesterday", 0), None);
        assert_eq!(parse("-5 weeks", 0), None);
    }
}
