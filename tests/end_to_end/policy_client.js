// Asks the gateway with the official npm client and a key of its own; prints the reply as JSON.
const OpenAI = require("openai");

async function main() {
  const [baseURL, apiKey, content] = process.argv.slice(2);
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  const messages = [{ role: "user", content }];
  const stream = await client.chat.completions.create({ model: "echo", messages, stream: true });
  let streamed = "";
  for await (const chunk of stream) streamed += chunk.choices[0]?.delta?.content ?? "";
  console.log(JSON.stringify({ streamed }));
}

main();
