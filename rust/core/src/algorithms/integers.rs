//! Integer division as the algorithms write it.

/// The least integer not below a / b, for b > 0.
#[inline(always)]
pub fn ceil_div(a: i64, b: i64) -> i64 {
    if b == 1 {
        return a;
    }
    floor_div(a + b - 1, b)
}

/// The greatest integer not above a / b, for b > 0.
#[inline(always)]
pub fn floor_div(a: i64, b: i64) -> i64 {
    if a >= 0 {
        // Unsigned division is the cheaper instruction, and both are known to be positive here.
        ((a as u64) / (b as u64)) as i64
    } else {
        a.div_euclid(b)
    }
}

/// The greatest integer not above a / b, for a >= 0 and b > 0, where that is likely `near`: then nothing is divided.
#[inline(always)]
pub fn floor_div_near(a: i64, b: i64, near: i64) -> i64 {
    let rest = a.wrapping_sub(near.saturating_mul(b));
    if (rest as u64) < b as u64 { near } else { floor_div(a, b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quotient_is_the_same_whatever_it_is_taken_to_be_near() {
        for a in [0, 1, 6, 7, 8, 13, 14, 1 << 52, (1 << 52) - 1] {
            for b in [1, 7, 60_000_000, 1 << 52] {
                for near in [a / b, a / b + 1, a / b - 1, 0, -1, i64::MIN, i64::MAX] {
                    assert_eq!(floor_div_near(a, b, near), a / b, "{a} / {b}, near {near}");
                }
            }
        }
    }
}
