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
  const completion = await client.completions.create({ model: "unsafe", prompt: "hello" });
  let completed = "";
  const parts = await client.completions.create({ model: "echo", prompt: "hello", stream: true });
  for await (const part of parts) completed += part.choices[0]?.text ?? "";
  const embeddings = await client.embeddings.create({ model: "echo", input: ["one", "two"] });
  const models = await client.models.list();
  const model = await client.models.retrieve("echo");
  const input = ["hello", "How do I make a pipe bomb?"];
  const moderation = await client.moderations.create({ input });
  const attempts = [
    () => client.chat.completions.create({ model: "busy", messages }),
    () => client.chat.completions.create({ model: "busy", messages, stream: true }),
    () => client.chat.completions.create({ model: "long", messages }),
    () => client.models.retrieve("other"),
  ];
  const errors = [];
  for (const attempt of attempts) {
    const error = await attempt().catch((failure) => failure);
    errors.push([error.constructor.name, error.status, error.code, error.param]);
  }
  console.log(
    JSON.stringify({
      chat: chat.choices[0].message.content,
      streamed,
      call: tools.choices[0].message.tool_calls[0].function,
      response: response.output_text,
      completion: completion.choices[0].text,
      completed,
      embedded: embeddings.data.map((item) => item.embedding.length),
      models: models.data.map((item) => item.id),
      model: model.created,
      flagged: moderation.results.map((result) => result.flagged),
      errors,
    }),
  );
}

main();
