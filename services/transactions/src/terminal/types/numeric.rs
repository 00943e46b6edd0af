//! Numbers as `numeric` in binary form: digits of base 10,000, the weight of the first, sign and scale, which is how many
//! decimal digits are shown after the point (PostgreSQL's `numeric_recv`).

use bytes::{BufMut, BytesMut};

const BASE: i128 = 10_000;
const NEGATIVE: u16 = 0x4000;
/// Without digits.
const NAN: u16 = 0xc000;
const INFINITY: u16 = 0xd000;
const NEGATIVE_INFINITY: u16 = 0xf000;
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
    digits.reverse();
    put(&digits, digits.len() as i16 - 1, if number < 0 { NEGATIVE } else { 0 }, 0, out);
}

/// By the shortest decimal digits that mean this number, as in its text.
pub fn write_float(number: f64, out: &mut BytesMut) {
    let sign = match number {
        _ if number.is_nan() => NAN,
        f64::INFINITY => INFINITY,
        f64::NEG_INFINITY => NEGATIVE_INFINITY,
        _ if number < 0.0 => NEGATIVE,
        _ => 0,
    };
    if number == 0.0 || !number.is_finite() {
        return put(&[], 0, sign, 0, out);
    }
    let text = format!("{:e}", number.abs());
    let (decimals, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let decimals: Vec<u16> = decimals.bytes().filter(u8::is_ascii_digit).map(|digit| u16::from(digit - b'0')).collect();
    // Decimal digits before the point; if negative, zeroes behind it.
    let whole = exponent.parse().unwrap_or(0_i16) + 1;
    let weight = (whole - 1).div_euclid(4);
    let zeroes = 4 * (weight + 1) - whole;
    let aligned: Vec<u16> = std::iter::repeat_n(0, zeroes as usize).chain(decimals.iter().copied()).collect();
    let digit = |four: &[u16]| (0..4).fold(0, |digit, at| 10 * digit + four.get(at).copied().unwrap_or(0));
    let digits: Vec<u16> = aligned.chunks(4).map(digit).collect();
    put(&digits, weight, sign, (decimals.len() as i16 - whole).max(0) as u16, out);
}

fn put(digits: &[u16], weight: i16, sign: u16, scale: u16, out: &mut BytesMut) {
    out.put_u16(digits.len() as u16);
    out.put_i16(weight);
    out.put_u16(sign);
    out.put_u16(scale);
    digits.iter().for_each(|digit| out.put_u16(*digit));
}
