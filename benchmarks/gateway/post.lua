-- wrk's script: POST one body with the given headers; the last line is the result as JSON.
-- wrk -t1 -c16 -d3s -s post.lua URL -- BODY_FILE [NAME:VALUE ...]

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  for number = 2, #arguments do
    local name, value = arguments[number]:match("^(.-):(.*)$")
    wrk.headers[name] = value
  end
  prepared = wrk.format()
end

function request()
  return prepared
end

function done(summary, latency, _)
  local failed = summary.errors
  local errors = failed.connect + failed.read + failed.write + failed.timeout + failed.status
  io.write(string.format(
    '{"requests": %d, "seconds": %.6f, "p50_ms": %.4f, "p99_ms": %.4f, "errors": %d}\n',
    summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, errors))
end
