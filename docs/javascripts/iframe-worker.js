// Search in pages that were opened from disk: browsers start no worker there, so a hidden frame takes its place.
// The theme's search script asks for the name IFrameWorker to know that it runs in one.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.loaded = new Promise((resolve) => {
        document.body.appendChild(this.frame);
        const inside = this.frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const script = inside.document.createElement("script");
        script.src = url;
        script.addEventListener("load", () => resolve(inside));
        script.addEventListener("error", () => this.dispatchEvent(new ErrorEvent("error", { message: `${url} cannot be loaded` })));
        inside.document.body.appendChild(script);
      });
    }

    async postMessage(data) {
      const inside = await this.loaded;
      inside.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
}
