use proptest::prelude::*;

use super::*;

fn binary(of: SqlType, value: &Value) -> Vec<u8> {
    let mut out = BytesMut::new();
    of.write(value, Format::Binary, &mut out);
    out.to_vec()
}

fn text(of: SqlType, value: &Value) -> String {
    let mut out = BytesMut::new();
    of.write(value, Format::Text, &mut out);
    String::from_utf8(out.to_vec()).expect("UTF-8")
}

#[test]
fn values_are_written_as_postgresql_writes_them() {
    for (value, expected) in [
        (Value::Bool(true), "t"),
        (Value::BigInt(i64::MIN), "-9223372036854775808"),
        (Value::DoublePrecision(1.0), "1"),
        (Value::DoublePrecision(-0.5), "-0.5"),
        (Value::DoublePrecision(1e15), "1e+15"),
        (Value::DoublePrecision(1.5e-7), "1.5e-07"),
        (Value::DoublePrecision(1e300), "1e+300"),
        (Value::DoublePrecision(f64::NEG_INFINITY), "-Infinity"),
        (Value::DoublePrecision(f64::NAN), "NaN"),
        (Value::Text("é".into()), "é"),
        (Value::Bytea(vec![0, 0xab]), "\\x00ab"),
    ] {
        let of = SqlType::from(value.of().expect("a type"));
        assert_eq!(text(of, &value), expected);
    }
}

#[test]
fn numerics_are_written_in_binary_form_as_postgresql_writes_them() {
    for (number, expected) in [
        (1.5, &[2, 0, 0, 1, 1, 5000][..]),
        (-0.001, &[1, 0xffff, 0x4000, 3, 10]),
        (12345.678, &[3, 1, 0, 3, 1, 2345, 6780]),
        (1e20, &[1, 5, 0, 0, 1]),
        (0.0, &[0, 0, 0, 0]),
        (f64::NAN, &[0, 0, 0xc000, 0]),
        (f64::INFINITY, &[0, 0, 0xd000, 0]),
        (f64::NEG_INFINITY, &[0, 0, 0xf000, 0]),
    ] {
        let expected: Vec<u8> = expected.iter().flat_map(|word: &u16| word.to_be_bytes()).collect();
        assert_eq!(binary(SqlType::Numeric, &Value::DoublePrecision(number)), expected, "{number}");
    }
}

/// The number that a numeric in binary form means.
fn meant(bytes: &[u8]) -> f64 {
    let words: Vec<u16> = bytes.chunks_exact(2).map(|word| u16::from_be_bytes([word[0], word[1]])).collect();
    let digits: String = words[4..].iter().map(|digit| format!("{digit:04}")).collect();
    let exponent = 4 * (i32::from(words[1] as i16) + 1);
    let sign = if words[2] == 0x4000 { "-" } else { "" };
    format!("{sign}0.{digits}e{exponent}").parse().expect("a number")
}

#[test]
fn what_is_no_value_of_a_type_is_refused_with_its_code() {
    for (of, wrong, state) in [
        (SqlType::Int8, "x", "22P02"),
        (SqlType::Int8, "", "22P02"),
        (SqlType::Int8, "1.5", "22P02"),
        (SqlType::Int8, "9223372036854775808", "22003"),
        (SqlType::Int4, "2147483648", "22003"),
        (SqlType::Int2, "-32769", "22003"),
        (SqlType::Bool, "maybe", "22P02"),
        (SqlType::Bool, "o", "22P02"),
        (SqlType::Float8, "one", "22P02"),
        (SqlType::Float8, "1e400", "22003"),
        (SqlType::Float8, "-1e-400", "22003"),
        (SqlType::Float4, "1e39", "22003"),
        (SqlType::Float4, "1e-60", "22003"),
        (SqlType::Numeric, "1e400", "22003"),
        (SqlType::Bytea, "\\x0", "22P02"),
        (SqlType::Bytea, "\\9", "22P02"),
    ] {
        let refusal = of.read(Format::Text, wrong.as_bytes()).expect_err(wrong);
        assert_eq!(refusal.state.0, state, "{of:?} {wrong:?}: {}", refusal.message);
    }
    for (of, bytes) in
        [(SqlType::Int8, 4), (SqlType::Int4, 8), (SqlType::Bool, 0), (SqlType::Float8, 7), (SqlType::Int2, 1)]
    {
        assert_eq!(of.read(Format::Binary, &vec![0; bytes]).expect_err("too short or long").state.0, "22P03", "{of:?}");
    }
    assert_eq!(SqlType::Text.read(Format::Text, &[0xff]).expect_err("no UTF-8").state.0, "22021");
    assert_eq!(SqlType::Float8.read(Format::Text, b"0e-400"), Ok(Value::DoublePrecision(0.0)));
    assert_eq!(SqlType::Float8.read(Format::Text, b"-Infinity"), Ok(Value::DoublePrecision(f64::NEG_INFINITY)));
}

#[test]
fn a_text_with_a_zero_byte_is_refused_in_either_form() {
    for of in [SqlType::Text, SqlType::Varchar, SqlType::Unknown] {
        for format in [Format::Text, Format::Binary] {
            assert_eq!(of.read(format, b"a\0b").expect_err("a zero byte").state.0, "22021", "{of:?} {format:?}");
        }
    }
    assert_eq!(SqlType::Bytea.read(Format::Binary, b"a\0b"), Ok(Value::Bytea(b"a\0b".to_vec())));
}

/// A numeric in text, converted to a bigint by a cast and as an argument.
fn whole(text: &str) -> [Result<Value, Refusal>; 2] {
    let numeric = || SqlType::Numeric.read_as_text(text);
    [
        numeric().and_then(|value| SqlType::Int8.cast(value, SqlType::Numeric)),
        numeric().and_then(|value| argument(value, Type::BigInt)),
    ]
}

#[test]
fn a_numeric_becomes_the_whole_number_that_it_is_or_is_refused() {
    for (text, number) in [
        ("9007199254740993", 9_007_199_254_740_993),
        ("9007199254740993.0", 9_007_199_254_740_993),
        (" +9007199254740993.000 ", 9_007_199_254_740_993),
        ("9.007199254740993e15", 9_007_199_254_740_993),
        ("-90071992547409930E-1", -9_007_199_254_740_993),
        ("-9223372036854775808.0", i64::MIN),
        ("9223372036854775807.", i64::MAX),
        ("9223372036854775800.0", 9_223_372_036_854_775_800),
        ("1e18", 1_000_000_000_000_000_000),
        ("00.000e7", 0),
        ("-.0", 0),
    ] {
        assert_eq!(whole(text), [Ok(Value::BigInt(number)), Ok(Value::BigInt(number))], "{text}");
    }
    for text in [
        "9223372036854775808.0",
        "1e19",
        "9007199254740993.5",
        "4503599627370496.3",
        ".",
        "-",
        "e5",
        "1e",
        "1.+5",
        "1.-0",
        ".-5e2",
    ] {
        assert!(whole(text).iter().all(Result::is_err), "{text}: {:?}", whole(text));
    }
    assert_eq!(
        argument(Value::DoublePrecision(9_007_199_254_740_992.0), Type::BigInt).expect_err("it may be rounded").state.0,
        "0A000"
    );
}

#[test]
fn reals_are_rounded_as_such_and_written_with_their_own_digits() {
    let real = |text: &str| SqlType::Float4.read(Format::Text, text.as_bytes()).expect(text);
    for (given, written) in
        [("0.1", "0.1"), ("123456", "123456"), ("1000000", "1e+06"), ("-1e-5", "-1e-05"), ("NaN", "NaN")]
    {
        assert_eq!(text(SqlType::Float4, &real(given)), written);
        assert_eq!(SqlType::Text.cast(real(given), SqlType::Float4), Ok(Value::Text(written.into())));
    }
    let rounded = Value::DoublePrecision(0.100_000_001_490_116_12);
    assert_eq!(real("0.1"), rounded);
    assert_eq!(SqlType::Float4.cast(Value::DoublePrecision(0.1), SqlType::Numeric), Ok(rounded.clone()));
    assert_eq!(SqlType::Numeric.cast(rounded, SqlType::Float4), Ok(Value::DoublePrecision(0.1)));
}

#[test]
fn an_argument_fits_if_nothing_is_lost() {
    assert_eq!(argument(Value::Text(" 7 ".into()), Type::BigInt), Ok(Value::BigInt(7)));
    assert_eq!(argument(Value::DoublePrecision(7.0), Type::BigInt), Ok(Value::BigInt(7)));
    assert_eq!(argument(Value::BigInt(7), Type::DoublePrecision), Ok(Value::DoublePrecision(7.0)));
    assert_eq!(argument(Value::Null, Type::Bytea), Ok(Value::Null));
    for (value, to) in [
        (Value::DoublePrecision(7.5), Type::BigInt),
        (Value::DoublePrecision(1e19), Type::BigInt),
        (Value::BigInt(1), Type::Text),
        (Value::Bool(true), Type::BigInt),
    ] {
        assert!(argument(value.clone(), to).is_err(), "{value:?} as {to:?}");
    }
}

#[test]
fn casts_convert_as_in_postgresql() {
    let double = |number| (Value::DoublePrecision(number), SqlType::Float8);
    let cast = |to: SqlType, (value, from)| to.cast(value, from).map_err(|refusal| refusal.state);
    assert_eq!(cast(SqlType::Int8, double(2.5)), Ok(Value::BigInt(2)), "to the even number");
    assert_eq!(cast(SqlType::Int8, double(1e17)), Ok(Value::BigInt(100_000_000_000_000_000)));
    assert_eq!(
        cast(SqlType::Int8, (Value::DoublePrecision(-2.5), SqlType::Numeric)),
        Ok(Value::BigInt(-3)),
        "away from 0"
    );
    assert_eq!(cast(SqlType::Text, (Value::BigInt(5), SqlType::Int8)), Ok(Value::Text("5".into())));
    assert_eq!(cast(SqlType::Text, (Value::Bool(true), SqlType::Bool)), Ok(Value::Text("true".into())));
    assert_eq!(cast(SqlType::Int8, (Value::Text("5".into()), SqlType::Text)), Ok(Value::BigInt(5)));
    assert_eq!(cast(SqlType::Int2, (Value::BigInt(40_000), SqlType::Int8)), Err(SqlState::OUT_OF_RANGE));
    assert_eq!(cast(SqlType::Int8, double(f64::NAN)), Err(SqlState::OUT_OF_RANGE));
}

proptest! {
    #[test]
    fn integers_survive_either_form(number: i64) {
        let value = Value::BigInt(number);
        for of in [SqlType::Int8, SqlType::Numeric] {
            prop_assert_eq!(of.read(Format::Binary, &binary(of, &value)), Ok(value.clone()));
            prop_assert_eq!(of.read(Format::Text, text(of, &value).as_bytes()), Ok(value.clone()));
        }
    }

    #[test]
    fn floats_survive_either_form(bits: u64) {
        let number = f64::from_bits(bits);
        prop_assume!(!number.is_nan());
        let value = Value::DoublePrecision(number);
        prop_assert_eq!(SqlType::Float8.read(Format::Binary, &binary(SqlType::Float8, &value)), Ok(value.clone()));
        prop_assert_eq!(SqlType::Float8.read(Format::Text, text(SqlType::Float8, &value).as_bytes()), Ok(value));
    }

    #[test]
    fn floats_survive_as_numerics(bits: u64) {
        let number = f64::from_bits(bits);
        prop_assume!(number.is_finite());
        let written = binary(SqlType::Numeric, &Value::DoublePrecision(number));
        prop_assert_eq!(usize::from(u16::from_be_bytes([written[0], written[1]])), (written.len() - 8) / 2);
        prop_assert_eq!(meant(&written), number);
        let read = SqlType::Numeric.read(Format::Binary, &written);
        prop_assert_eq!(read.and_then(|value| argument(value, Type::DoublePrecision)), Ok(Value::DoublePrecision(number)));
    }

    #[test]
    fn reals_survive_either_form(bits: u32) {
        let number = f32::from_bits(bits);
        prop_assume!(!number.is_nan());
        let value = Value::DoublePrecision(number.into());
        prop_assert_eq!(SqlType::Float4.read(Format::Binary, &binary(SqlType::Float4, &value)), Ok(value.clone()));
        prop_assert_eq!(SqlType::Float4.read(Format::Text, text(SqlType::Float4, &value).as_bytes()), Ok(value));
    }

    #[test]
    fn bytes_survive_either_form(bytes: Vec<u8>) {
        let value = Value::Bytea(bytes);
        prop_assert_eq!(SqlType::Bytea.read(Format::Binary, &binary(SqlType::Bytea, &value)), Ok(value.clone()));
        prop_assert_eq!(SqlType::Bytea.read(Format::Text, text(SqlType::Bytea, &value).as_bytes()), Ok(value));
    }

    #[test]
    fn no_bytes_of_a_client_are_beyond_any_type(bytes: Vec<u8>) {
        for (of, ..) in TYPES {
            for format in [Format::Text, Format::Binary] {
                let _ = of.read(format, &bytes);
            }
        }
    }
}

#[test]
fn a_numeric_keeps_the_digits_that_a_double_has_not() {
    let numeric = |text: &str| SqlType::Numeric.read_as_text(text).expect("a numeric");
    for (given, expected) in [
        ("12345678901234567890", "12345678901234567890"),
        ("-12345678901234567.250", "-12345678901234567.25"),
        ("0.12345678901234567890", "0.1234567890123456789"),
        ("00012.5e-1", "1.25"),
        ("1e20", "100000000000000000000"),
        ("-.5e-7", "-0.00000005"),
        ("1.5", "1.5"),
        ("0.10", "0.1"),
        ("-Infinity", "-Infinity"),
    ] {
        let value = numeric(given);
        assert_eq!(text(SqlType::Numeric, &value), expected, "{given}");
        let cast = |to: SqlType| to.cast(value.clone(), SqlType::Numeric);
        assert_eq!(cast(SqlType::Text), Ok(Value::Text(expected.into())), "{given}");
        assert_eq!(cast(SqlType::Numeric), Ok(value.clone()), "{given}");
        // As a numeric is sent, it is read.
        let binary = SqlType::Numeric.read(Format::Binary, &binary(SqlType::Numeric, &value));
        assert_eq!(binary.map(|read| text(SqlType::Numeric, &read)), Ok(expected.to_owned()), "{given}");
    }
    let long = numeric("12345678901234567.25");
    assert_eq!(
        SqlType::Float8.cast(long.clone(), SqlType::Numeric),
        Ok(Value::DoublePrecision(12_345_678_901_234_568.0))
    );
    let state = |result: Result<Value, Refusal>| result.map_err(|refusal| refusal.state.0);
    assert_eq!(state(SqlType::Int8.cast(long.clone(), SqlType::Numeric)), Err("0A000"));
    let near = numeric("2.50000000000000000001");
    assert_eq!(SqlType::Int8.cast(near.clone(), SqlType::Numeric), Ok(Value::BigInt(3)));
    assert_eq!(state(SqlType::Bool.cast(near.clone(), SqlType::Numeric)), Err("42804"));
    assert_eq!(state(argument(SqlType::Numeric.rounded(near.clone()), Type::Text)), Err("42804"));
    assert_eq!(argument(SqlType::Numeric.rounded(near), Type::DoublePrecision), Ok(Value::DoublePrecision(2.5)));
    assert_eq!(state(SqlType::Numeric.read_as_text("1e400")), Err("22003"));
    assert_eq!(state(SqlType::Numeric.read_as_text("1e1")), Ok(Value::BigInt(10)));
}
