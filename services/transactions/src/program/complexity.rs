//! Whether a module can be compiled in reasonable time and memory.
//!
//! Both grow with the square of a function's length: each block, loop and branch may have a value of its own for each local. 48 KB
//! were enough for a minute and 1.7 GB, and nothing in the compiler ends it. What is counted here is known after one pass
//! over the code, which takes milliseconds, and it errs on the safe side: what is refused may well compile at once.
//!
//! Considered: a bound on locals or on the length of functions, which would have to be smaller than compilers make of
//! large programs without optimization; and a process that compiles under limits of the host, for which everything would be
//! compiled twice, or machine code be taken from another process.

use wasmtime::wasmparser::{BlockType, FunctionBody, Operator, OperatorsReader, Parser, Payload};

/// Of a function: the square of its places, and [so often](COST_OF_LOCAL) these times its locals. The largest of SQLite has 44
/// million, of a program with parsers of JSON, TOML and regular expressions 4.5 million.
const FUNCTION_COST_MAX: u64 = 100_000_000;

/// As many places cost as much. Compilers make some fifty locals for the longest functions.
const COST_OF_LOCAL: u64 = 8;

/// Of all functions: SQLite has 122 million.
const COST_MAX: u64 = 500_000_000;

/// Parameters and results of a function.
pub(super) const VALUES_MAX: usize = 64;

/// A block with parameters, or with several results, takes as much memory as so many without.
const PLACES_OF_VALUES: u64 = 64;

/// What is no valid module is left to the compiler, which says why; it may compile what is before or behind an invalid part.
pub(super) fn is_too_complex(module: &[u8]) -> bool {
    let mut sum = 0_u64;
    for payload in Parser::new(0).parse_all(module).map_while(Result::ok) {
        match payload {
            Payload::TypeSection(types) => {
                let mut types = types.into_iter_err_on_gc_types().map_while(Result::ok);
                if types.any(|of| of.params().len() + of.results().len() > VALUES_MAX) {
                    return true;
                }
            }
            Payload::CodeSectionEntry(function) => {
                let cost = cost(module, &function);
                sum = sum.saturating_add(cost);
                if cost > FUNCTION_COST_MAX || sum > COST_MAX {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

fn cost(module: &[u8], function: &FunctionBody<'_>) -> u64 {
    let locals = function.get_locals_reader().into_iter().flatten().map_while(Result::ok);
    let locals: u64 = locals.map(|(count, _)| u64::from(count)).sum();
    let operators = function.get_operators_reader().into_iter().flat_map(OperatorsReader::into_iter_with_offsets);
    let places = operators.map_while(Result::ok).map(|(operator, at)| match operator {
        Operator::Block { blockty: BlockType::FuncType(_) }
        | Operator::Loop { blockty: BlockType::FuncType(_) }
        | Operator::If { blockty: BlockType::FuncType(_) } => PLACES_OF_VALUES,
        Operator::BrTable { targets } => 1 + u64::from(targets.len()),
        _ => u64::from(module.get(at).is_some_and(|opcode| is_place(*opcode))),
    });
    let places: u64 = places.sum();
    places.saturating_mul(places.saturating_add(locals.saturating_mul(COST_OF_LOCAL)))
}

/// Control and calls, accesses of memory and of tables, what may trap (division, truncation), and those of more than one byte; not
/// variables, constants and other arithmetic (WebAssembly's specification, 5.4 "Instructions").
const fn is_place(opcode: u8) -> bool {
    matches!(opcode, 0x00..=0x1f | 0x25..=0x40 | 0x6d..=0x70 | 0x7f..=0x82 | 0xa8..=0xab | 0xae..=0xb1 | 0xc5..)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const LOOP: &str = "(loop (br_if 0 (local.get 0)))";

    fn is_refused(functions: &str) -> bool {
        let module = wat::parse_str(format!(r#"(module (memory 1) (table 1 funcref) {functions})"#)).expect("a module");
        let begun = Instant::now();
        let is_refused = is_too_complex(&module);
        assert!(begun.elapsed() < Duration::from_secs(2), "it takes {:?} to see", begun.elapsed());
        is_refused
    }

    fn function(locals: usize, body: &str, times: usize) -> String {
        format!("(func (param i32) (local {}) {})", "i64 ".repeat(locals), body.repeat(times))
    }

    #[test]
    fn what_would_keep_the_compiler_for_long_is_refused() {
        let values = "i32 ".repeat(16);
        let parameters = format!("(param {values}) (result {values})");
        for (refused, functions) in [
            (false, function(100, LOOP, 1_000)),
            (true, function(2_000, LOOP, 4_000)),
            (true, function(50_000, LOOP, 1_000)),
            (true, function(30_000, LOOP, 200)),
            (true, function(5_000, "(drop (i32.div_u (local.get 0) (i32.const 7)))", 3_000)),
            (true, function(5_000, "(drop (i64.rem_s (i64.const 7) (i64.const 7)))", 3_000)),
            (true, function(5_000, "(drop (i32.trunc_f64_s (f64.const 7)))", 3_000)),
            (true, function(5_000, "(table.set 0 (i32.const 0) (table.get 0 (i32.const 0)))", 1_500)),
            (true, function(0, LOOP, 4_000)),
            (false, function(0, "(drop (i32.load (local.get 0)))", 3_000)),
            (true, function(0, "(drop (i32.load (local.get 0)))", 12_000)),
            (false, function(10_000, "(local.set 0 (i32.add (local.get 0) (i32.const 7)))", 100_000)),
            (true, function(10, "(block (br_table 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 (local.get 0)))", 1_000)),
            (true, function(0, &format!("(block {parameters})"), 1_000)),
            (true, format!("(func (param {}))", "i32 ".repeat(65))),
            (false, function(100, LOOP, 1_000).repeat(40)),
            (true, function(100, LOOP, 1_000).repeat(60)),
        ] {
            assert_eq!(is_refused(&functions), refused, "{} characters", functions.len());
        }
    }

    #[test]
    fn what_is_invalid_hides_nothing() {
        let long = function(2_000, LOOP, 4_000);
        let invalid = "(func) (func (i64.const 1) (drop))";
        let module = |functions: String| wat::parse_str(format!("(module {functions})")).expect("a module");
        for (is_refused, module) in [
            (false, module(invalid.into())),
            (true, module(invalid.to_owned() + &long)),
            (true, module(long + invalid)),
        ] {
            // No instruction has this number.
            let at = module.windows(3).position(|code| code == [0x42, 1, 0x1a]).expect("the constant");
            let broken = [&module[..at], &[0xff], &module[at + 1..]].concat();
            assert_eq!(is_too_complex(&broken), is_refused);
        }
        assert!(!is_too_complex(b"no module") && !is_too_complex(b"\0asm\x01\0\0\0\x0a\x05\x01\x7f"));
    }
}
