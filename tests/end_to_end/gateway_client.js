// Talks to the gateway with the official npm client and prints what came as JSON.
const OpenAI = require("openai");

async function main() {
  const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
  const messages = [{ role: "user", content: "hello" }];
  const chat = await client.chat.completions.create({ model: "echo", messages });
  const stream = await client.chat.completions.create({ model: "unsafe", messages, stream: true });
  let streamed = "";
  for await (const chunk of stream) streamed += chunk.choices[0]?.delta?.content ?? "";
  const tools = await client.chat.completions.create({ model: "tools", messages });
  const response = await client.responses.create({ model: "echo", input: "hello" });
  const missing = await client.chat.completions
    .create({ model: "busy", messages })
    .catch((error) => error);
  console.log(
    JSON.stringify({
      chat: chat.choices[0].message.content,
      streamed,
      call: tools.choices[0].message.tool_calls[0].function,
      response: response.output_text,
      error: [missing.constructor.name, missing.status],
    }),
  );
}

main();
