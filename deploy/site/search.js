// The search takes a dash before a word for "without this word", so it would find nothing for `--threads`. An option is
// searched for by its name.
{
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...others) {
    const asked = message && typeof message.data === "string";
    const sent = asked ? { ...message, data: message.data.replace(/(^|\s)-+(?=\w)/g, "$1") } : message;
    return post.call(this, sent, ...others);
  };
}
