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
