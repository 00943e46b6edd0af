//! A function of a program, as clients call it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use kernel::Processor;
use kernel::counters::Activity;
use wasmtime::{ModuleExport, Val};

use super::attempts::Attempts;
use super::callee::{Callee, Parameters, Returned};
use super::describe::Description;
use super::{MEMORY_BYTES_MAX, ModuleError, Program, ProgramError};
use super::{at_once, call};
use crate::store::Transaction;
use crate::{Signature, Type, Value};

/// The table of what the monitor itself knows about programs. Its keys are `init` and the name of a program whose `init`
/// was executed in this database.
const OWN_TABLE: &str = "awase.programs";

/// One version of a function. Calls that are under way keep theirs when another is installed.
pub struct Function {
    description: Description,
    export: ModuleExport,
    program: Arc<Program>,
    attempts: Attempts,
}

impl Function {
    pub fn signature(&self) -> &Signature {
        &self.description.signature
    }

    /// The program that it is a function of.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Executes it, after the program's `init` if that has not been executed in this database. `arguments`: as many as
    /// the signature has, each NULL or of its type.
    ///
    /// # Errors
    /// If the program aborts or misbehaves, or the database fails.
    pub async fn call(
        &self,
        cpu: &Processor,
        arguments: &[Value],
        transaction: &mut Transaction,
    ) -> Result<Value, ProgramError> {
        self.execute(cpu, arguments, transaction, false).await.map(|(value, _)| value)
    }

    /// As [`Function::call`]; also returns whether it was executed at once. `read_only`: it may not write.
    pub(crate) async fn execute(
        &self,
        cpu: &Processor,
        arguments: &[Value],
        transaction: &mut Transaction,
        read_only: bool,
    ) -> Result<(Value, bool), ProgramError> {
        let parameters = self.parameters(arguments)?;
        if !self.program.is_initialized() {
            self.program.initialize(cpu, transaction).await?;
        }
        let callee = self.callee(read_only);
        let called = timed(cpu, call::execute(cpu, &callee, parameters, transaction)).await;
        let returned = called.map_err(|error| self.named(error))?;
        let at_once = returned.at_once;
        Ok((self.value(returned)?, at_once))
    }

    /// Executes it at once (OLTP-4). `None`: it would wait or take long, or `init` comes first; nothing has happened.
    ///
    /// # Errors
    /// As [`Function::execute`].
    pub(crate) fn execute_at_once(
        &self,
        cpu: &Processor,
        arguments: &[Value],
        transaction: &mut Transaction,
        read_only: bool,
    ) -> Result<Option<Value>, ProgramError> {
        if !self.program.is_initialized() {
            return Ok(None);
        }
        let parameters = self.parameters(arguments)?;
        let execute = || at_once::execute(cpu, &self.callee(read_only), &parameters, transaction, true);
        match cpu.doing(Activity::Program, execute)? {
            Some(returned) => self.value(returned).map(Some),
            None => Ok(None),
        }
    }

    fn callee(&self, read_only: bool) -> Callee<'_> {
        let returns = self.signature().returns;
        let results = usize::from(matches!(returns, Some(Type::Bool | Type::BigInt | Type::DoublePrecision)));
        Callee { program: &self.program, export: &self.export, results, attempts: Some(&self.attempts), read_only }
    }

    /// As WebAssembly has them.
    fn parameters(&self, arguments: &[Value]) -> Result<Parameters, ProgramError> {
        let signature = self.signature();
        if arguments.len() != signature.arguments.len() {
            return Err(ProgramError::Abort(format!("{signature} was called with {} arguments", arguments.len())));
        }
        let mut parameters = Parameters::default();
        for (index, (value, argument)) in arguments.iter().zip(&signature.arguments).enumerate() {
            let wrong = |what: &str| ProgramError::Abort(format!("{} of {} {what}", argument.name, signature.name));
            if *value == Value::Null {
                if !self.description.nullable[index] {
                    return Err(wrong("may not be NULL"));
                }
                parameters.nulls |= 1 << index;
            }
            let mut bytes = None;
            parameters.values.push(match (value, argument.of) {
                (Value::Null, Type::BigInt) => Val::I64(0),
                (Value::Null, Type::DoublePrecision) => Val::F64(0),
                (Value::Null, Type::Bool | Type::Text | Type::Bytea) => Val::I32(0),
                (Value::Bool(value), Type::Bool) => Val::I32(i32::from(*value)),
                (Value::BigInt(value), Type::BigInt) => Val::I64(*value),
                (Value::DoublePrecision(value), Type::DoublePrecision) => Val::F64(value.to_bits()),
                (Value::Text(text), Type::Text) => {
                    length(bytes.insert(text.as_bytes())).ok_or_else(|| wrong("is too long"))?
                }
                (Value::Bytea(value), Type::Bytea) => {
                    length(bytes.insert(value)).ok_or_else(|| wrong("is too long"))?
                }
                _ => return Err(wrong(&format!("must be {}", argument.of))),
            });
            if let Some(bytes) = bytes {
                parameters.texts.resize(index, None);
                parameters.texts.push(Some(Arc::from(bytes)));
            }
        }
        Ok(parameters)
    }

    fn value(&self, returned: Returned) -> Result<Value, ProgramError> {
        let Some(of) = self.signature().returns else { return Ok(Value::Null) };
        let wrong = |what: &str| self.named(ProgramError::Trap(what.to_owned()));
        if returned.null {
            return if self.description.returns_null { Ok(Value::Null) } else { Err(wrong("it returned NULL")) };
        }
        let nothing = || wrong("it returned nothing");
        Ok(match (of, returned.result) {
            (Type::Bool, Some(Val::I32(value))) => Value::Bool(value != 0),
            (Type::BigInt, Some(Val::I64(value))) => Value::BigInt(value),
            (Type::DoublePrecision, Some(Val::F64(bits))) => Value::DoublePrecision(f64::from_bits(bits)),
            (Type::Bytea, None) => Value::Bytea(returned.reply.ok_or_else(nothing)?),
            (Type::Text, None) => {
                let text = String::from_utf8(returned.reply.ok_or_else(nothing)?);
                let text = text.map_err(|_| wrong("it returned a text that is not UTF-8"))?;
                // PostgreSQL's texts cannot have any, and so no client.
                if text.contains('\0') {
                    return Err(wrong("it returned a text with a zero byte"));
                }
                Value::Text(text)
            }
            _ => return Err(nothing()),
        })
    }

    /// With the function's name in the message.
    fn named(&self, error: ProgramError) -> ProgramError {
        match error {
            ProgramError::Trap(what) => ProgramError::Trap(format!("{}: {what}", self.signature().name)),
            other => other,
        }
    }
}

/// It is the program's time.
async fn timed<T>(cpu: &Processor, call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    poll_fn(|cx| cpu.doing(Activity::Program, || call.as_mut().poll(cx))).await
}

/// `None`: more than a call's memory has room for.
fn length(bytes: &[u8]) -> Option<Val> {
    i32::try_from(bytes.len()).ok().filter(|_| bytes.len() < MEMORY_BYTES_MAX).map(Val::I32)
}

impl Program {
    /// Checks and compiles the module `bytes`. Returns the program, and its functions in the order of their description.
    ///
    /// # Errors
    /// If it cannot be a program.
    pub fn compile(name: &str, bytes: &[u8]) -> Result<(Arc<Program>, Vec<Arc<Function>>), ModuleError> {
        let (program, described) = Program::read(name, bytes)?;
        let function = |(description, export)| {
            let (program, attempts) = (Arc::clone(&program), Attempts::default());
            Arc::new(Function { description, export, program, attempts })
        };
        let functions = described.into_iter().map(function).collect();
        Ok((program, functions))
    }

    /// Executes `init` in this transaction, unless it has been executed in this database.
    pub(crate) async fn initialize(&self, cpu: &Processor, transaction: &mut Transaction) -> Result<(), ProgramError> {
        let Some(init) = &self.init else { return Ok(()) };
        let table = transaction.table(OWN_TABLE)?;
        let key = [b"init ", self.name().as_bytes()].concat();
        if transaction.get(cpu, table, &key).await?.is_some() {
            return Ok(());
        }
        let callee = Callee { program: self, export: init, results: 0, attempts: None, read_only: false };
        let call = call::execute(cpu, &callee, Parameters::default(), transaction);
        timed(cpu, call).await.map_err(|error| match error {
            ProgramError::Trap(what) => ProgramError::Trap(format!("init of {}: {what}", self.name())),
            other => other,
        })?;
        Ok(transaction.put(table, &key, b"")?)
    }
}
