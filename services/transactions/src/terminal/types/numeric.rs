//! Integers as `numeric` in binary form: digits of base 10,000, the weight of the first, sign and scale
//! (PostgreSQL's `numeric_recv`).

use bytes::{BufMut, BytesMut};

const BASE: i128 = 10_000;
const NEGATIVE: u16 = 0x4000;
/// An integer of 64 bits has at most 5 digits; what is longer can only hold zeroes behind.
const DIGITS_MAX: usize = 64;

/// `None`: not an integer of 64 bits.
pub fn read(bytes: &[u8]) -> Option<i64> {
    let word = |index: usize| {
        let bytes = bytes.get(2 * index..2 * index + 2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    let (count, weight, sign) = (usize::from(word(0)?), word(1)? as i16, word(2)?);
    if count > DIGITS_MAX || bytes.len() != 8 + 2 * count || !matches!(sign, 0 | NEGATIVE) {
        return None;
    }
    let mut number: i128 = 0;
    for index in 0..count {
        let digit = i128::from(word(4 + index)?);
        let power = i32::from(weight) - index as i32;
        if digit >= BASE || (digit != 0 && !(0..=5).contains(&power)) {
            return None;
        }
        number += digit * BASE.pow(power.clamp(0, 5) as u32);
    }
    i64::try_from(if sign == NEGATIVE { -number } else { number }).ok()
}

pub fn write(number: i64, out: &mut BytesMut) {
    let (mut digits, mut rest) = (Vec::new(), i128::from(number).abs());
    while rest > 0 {
        digits.push((rest % BASE) as u16);
        rest /= BASE;
    }
    out.put_u16(digits.len() as u16);
    out.put_i16(digits.len() as i16 - 1);
    out.put_u16(if number < 0 { NEGATIVE } else { 0 });
    out.put_u16(0);
    digits.iter().rev().for_each(|digit| out.put_u16(*digit));
}
