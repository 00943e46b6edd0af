//! Requests to etcd's JSON gateway: several endpoints in turn, everything bounded in time and size.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use policy::unit::Instant;
use serde_json::Value;
use ureq::{Agent, BodyReader};

use super::fence::now;
use super::problem::EtcdError;

/// Bytes of an answer, or of one line of a stream: the keys of a cluster are a few thousand.
const BODY_MAX: u64 = 1 << 20;

pub(super) struct Gateway {
    agent: Agent,
    endpoints: Vec<String>,
    /// The one that answered last.
    current: usize,
    /// etcd's number of its cluster, from whoever answered first.
    cluster: Arc<OnceLock<String>>,
}

/// When the request was sent, and the answer.
pub(super) struct Answer {
    pub sent: Instant,
    pub body: Value,
}

impl Gateway {
    /// For questions, each answered within `timeout` by each endpoint.
    pub fn new(endpoints: &[String], cluster: &Arc<OnceLock<String>>, timeout: Duration) -> Self {
        let agent = agent().timeout_connect(Some(timeout / 2)).timeout_global(Some(timeout)).build().new_agent();
        Gateway { agent, endpoints: endpoints.to_vec(), current: 0, cluster: Arc::clone(cluster) }
    }

    /// For streams, which end when nothing arrives for `silence`.
    pub fn streaming(
        endpoints: &[String],
        cluster: &Arc<OnceLock<String>>,
        timeout: Duration,
        silence: Duration,
    ) -> Self {
        let agent = agent()
            .timeout_resolve(Some(timeout))
            .timeout_connect(Some(timeout / 2))
            .timeout_send_request(Some(timeout))
            .timeout_send_body(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_per_read(Some(silence));
        let agent = agent.build().new_agent();
        Gateway { agent, endpoints: endpoints.to_vec(), current: 0, cluster: Arc::clone(cluster) }
    }

    /// Asks the endpoints in turn until one answers.
    pub fn ask(&mut self, path: &str, question: &Value) -> Result<Answer, EtcdError> {
        self.each(|gateway, endpoint| {
            let (sent, status, reader) = gateway.post(endpoint, path, question)?;
            let text = read(endpoint, reader)?;
            let body = parse(endpoint, &text);
            if status != 200 {
                return Err(refused(endpoint, status, &text));
            }
            let body = body?;
            gateway.check_cluster(endpoint, &body)?;
            Ok(Answer { sent, body })
        })
    }

    /// Begins a stream at the first endpoint that answers.
    pub fn stream(&mut self, path: &str, question: &Value) -> Result<Lines, EtcdError> {
        self.each(|gateway, endpoint| {
            let (_, status, reader) = gateway.post(endpoint, path, question)?;
            if status != 200 {
                return Err(refused(endpoint, status, &read(endpoint, reader)?));
            }
            let cluster = Arc::clone(&gateway.cluster);
            Ok(Lines { endpoint: endpoint.to_owned(), reader: BufReader::new(reader), cluster })
        })
    }

    /// What one endpoint did not do another one may.
    pub fn next_endpoint(&mut self) {
        self.current = (self.current + 1) % self.endpoints.len();
    }

    fn each<T>(&mut self, mut attempt: impl FnMut(&Self, &str) -> Result<T, EtcdError>) -> Result<T, EtcdError> {
        let mut result = Err(EtcdError::Unreachable { endpoint: String::new(), reason: "no endpoint".into() });
        for _ in 0..self.endpoints.len() {
            result = attempt(self, &self.endpoints[self.current]);
            match &result {
                // A clear no is the answer of the whole cluster.
                Ok(_) | Err(EtcdError::Refused { status: 0..500, .. }) => break,
                Err(_) => self.next_endpoint(),
            }
        }
        result
    }

    fn post(&self, endpoint: &str, path: &str, body: &Value) -> Result<(Instant, u16, BodyReader<'static>), EtcdError> {
        let request = self.agent.post(format!("{endpoint}{path}")).content_type("application/json");
        let sent = now();
        let response = request.send(body.to_string()).map_err(|error| unreachable(endpoint, &error))?;
        let status = response.status().as_u16();
        Ok((sent, status, response.into_body().into_reader()))
    }

    fn check_cluster(&self, endpoint: &str, body: &Value) -> Result<(), EtcdError> {
        check_cluster(&self.cluster, endpoint, body)
    }
}

/// One connection for each request: a server that was restarted has forgotten those that wait, and there are a few
/// requests a second.
fn agent() -> ureq::config::ConfigBuilder<ureq::typestate::AgentScope> {
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .max_idle_connections(0)
        .user_agent("awase")
}

fn unreachable(endpoint: &str, error: &dyn std::error::Error) -> EtcdError {
    EtcdError::Unreachable { endpoint: endpoint.to_owned(), reason: error.to_string() }
}

fn malformed(endpoint: &str, reason: impl Into<String>) -> EtcdError {
    EtcdError::Malformed { endpoint: endpoint.to_owned(), reason: reason.into() }
}

fn refused(endpoint: &str, status: u16, text: &str) -> EtcdError {
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    let message = body["message"].as_str().unwrap_or("without a reason").chars().take(200).collect();
    EtcdError::Refused { endpoint: endpoint.to_owned(), status, message }
}

fn read(endpoint: &str, reader: impl Read) -> Result<String, EtcdError> {
    let mut bytes = Vec::new();
    reader.take(BODY_MAX + 1).read_to_end(&mut bytes).map_err(|error| unreachable(endpoint, &error))?;
    if bytes.len() as u64 > BODY_MAX {
        return Err(malformed(endpoint, format!("more than {BODY_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| malformed(endpoint, error.to_string()))
}

fn parse(endpoint: &str, text: &str) -> Result<Value, EtcdError> {
    serde_json::from_str(text).map_err(|error| malformed(endpoint, error.to_string()))
}

/// Endpoints of two clusters would be two arbiters.
fn check_cluster(cluster: &OnceLock<String>, endpoint: &str, body: &Value) -> Result<(), EtcdError> {
    let header = body.get("result").unwrap_or(body).get("header");
    let Some(id) = header.and_then(|header| header["cluster_id"].as_str()) else {
        return Err(malformed(endpoint, "no cluster_id"));
    };
    if cluster.get_or_init(|| id.to_owned()) == id {
        return Ok(());
    }
    Err(EtcdError::OtherCluster { endpoint: endpoint.to_owned() })
}

fn is_timeout(error: &std::io::Error) -> bool {
    let of_client = error.get_ref().and_then(|error| error.downcast_ref::<ureq::Error>());
    error.kind() == std::io::ErrorKind::TimedOut || matches!(of_client, Some(ureq::Error::Timeout(_)))
}

/// The lines of a stream.
pub(super) struct Lines {
    endpoint: String,
    reader: BufReader<BodyReader<'static>>,
    cluster: Arc<OnceLock<String>>,
}

impl Lines {
    /// The next one; `None` when the stream has ended, also by silence.
    pub fn next(&mut self) -> Result<Option<Value>, EtcdError> {
        let mut line = Vec::new();
        let read = (&mut self.reader).take(BODY_MAX + 1).read_until(b'\n', &mut line);
        match read {
            Ok(0) => return Ok(None),
            Err(error) if is_timeout(&error) => return Ok(None),
            Err(error) => return Err(unreachable(&self.endpoint, &error)),
            Ok(_) => {}
        }
        if line.len() as u64 > BODY_MAX {
            return Err(malformed(&self.endpoint, format!("a line of more than {BODY_MAX} bytes")));
        }
        let text = String::from_utf8(line).map_err(|error| malformed(&self.endpoint, error.to_string()))?;
        let body = parse(&self.endpoint, &text)?;
        check_cluster(&self.cluster, &self.endpoint, &body)?;
        Ok(Some(body))
    }
}
