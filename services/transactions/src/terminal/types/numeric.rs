//! Numbers as `numeric` in binary form: digits of base 10,000, the weight of the first, sign and scale, which is how many
//! decimal digits are shown after the point (PostgreSQL's `numeric_recv`).

use bytes::{BufMut, BytesMut};

const BASE: u16 = 10_000;
const NEGATIVE: u16 = 0x4000;
/// Without digits.
const NAN: u16 = 0xc000;
const INFINITY: u16 = 0xd000;
const NEGATIVE_INFINITY: u16 = 0xf000;

/// The same number in decimal digits. `None`: it is no numeric.
pub fn read(bytes: &[u8]) -> Option<String> {
    let (words, odd) = bytes.as_chunks();
    let words: Vec<u16> = words.iter().map(|word| u16::from_be_bytes(*word)).collect();
    let [count, weight, sign, _scale, digits @ ..] = &words[..] else { return None };
    if !odd.is_empty() || digits.len() != usize::from(*count) || digits.iter().any(|digit| *digit >= BASE) {
        return None;
    }
    let sign = match *sign {
        0 => "",
        NEGATIVE => "-",
        NAN => return Some("NaN".into()),
        INFINITY => return Some("Infinity".into()),
        NEGATIVE_INFINITY => return Some("-Infinity".into()),
        _ => return None,
    };
    let digits: String = digits.iter().map(|digit| format!("{digit:04}")).collect();
    let exponent = 4 * (i32::from(*weight as i16) + 1);
    Some(format!("{sign}0.{digits}e{exponent}"))
}

pub fn write(number: i64, out: &mut BytesMut) {
    let (mut digits, mut rest) = (Vec::new(), number.unsigned_abs());
    while rest > 0 {
        digits.push((rest % u64::from(BASE)) as u16);
        rest /= u64::from(BASE);
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
    put_decimals(decimals, exponent.parse().unwrap_or(0_i16) + 1, sign, out);
}

/// A decimal number without an exponent, of not much more than 1000 digits.
pub fn write_text(text: &str, out: &mut BytesMut) {
    let (sign, unsigned) = text.strip_prefix('-').map_or((0, text), |rest| (NEGATIVE, rest));
    let (before, behind) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let whole = if before == "0" {
        behind.trim_start_matches('0').len() as i16 - behind.len() as i16
    } else {
        before.len() as i16
    };
    put_decimals(unsigned.trim_start_matches(['0', '.']), whole, sign, out);
}

/// `decimals`: the first is not 0; a point among them means nothing. `whole`: how many are before the point; if negative,
/// there are as many zeroes behind it.
fn put_decimals(decimals: &str, whole: i16, sign: u16, out: &mut BytesMut) {
    let decimals: Vec<u16> = decimals.bytes().filter(u8::is_ascii_digit).map(|digit| u16::from(digit - b'0')).collect();
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
